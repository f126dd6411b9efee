"""Puts modelled parts in the places of a plan's own: the same profile, schedule, rules and placements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError, PolicyFacts, Role, Task
from grpo_bench.engine import check_deferred, due_steps
from grpo_bench.registry import Plan, load_plugin

from . import _plugins
from .config import PartConfig
from .model import Model, Quantity

Planner = Callable[[Sequence[str]], Plan]
"""The profile's plan with overrides on top of its own."""
_TASKS = 1000
"""How many tasks a split is taken to have where they cannot be listed here."""
_IN_PLACE = {Role.TRAINER: _plugins.trainer, Role.GENERATOR: _plugins.generator,
             Role.ENVIRONMENT: _plugins.environment, Role.AGENT: _plugins.agent}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated besides the profile. ``passes_at`` is the first step whose weights are taken to meet the
    target, validated or not; None: as in the logs. ``scales`` multiplies what a quantity takes. ``trainer_gpus`` and
    ``engines`` are how many times the plan's the trainer and the generator are taken to have, for splits that no plan
    can be made of; ``decoding`` is how many times as fast a token is decoded."""

    passes_at: int | None = None
    scales: Mapping[Quantity, float] = field(default_factory=dict)
    trainer_gpus: float = 1.0
    engines: float = 1.0
    decoding: float = 1.0


def passing_step(model: Model, plan: Plan) -> int:
    """The first step whose weights meet the target in the model's logs: by the rollouts of a step where it knows such
    runs, else the profile's last."""
    grpo = plan.profile.grpo
    batch = grpo.prompts_per_step * grpo.generations_per_prompt
    samples = model.passes_after.get(str(batch))
    return -(-samples // batch) if samples is not None else grpo.max_steps


def counted_step(plan: Plan, model: Model, scenario: Scenario) -> int | None:
    """The step whose weights are the first that a validation finds to meet the target: the first one due from the
    assumed step on; None where none is, or where the profile has no target."""
    if plan.profile.validation.target is None:
        return None
    assumed = passing_step(model, plan) if scenario.passes_at is None else scenario.passes_at
    return next((step for step in due_steps(plan) if step >= assumed), None)


def stood_in(plan: Plan, model: Model, scenario: Scenario) -> Plan:
    """The plan of a simulation of ``plan``. The profile's observers are left out: they tell others, and what they would
    tell of accuracy and losses was never computed. PlanError where there is nothing to simulate of a deferred
    evaluation."""
    check_deferred(plan)
    profile, counts = plan.profile, counted_step(plan, model, scenario)
    config = PartConfig(
        model=model, seed=plan.seed, prompts=profile.grpo.prompts_per_step,
        passes_at=profile.grpo.max_steps + 1 if counts is None else counts,
        speed=_ratio(plan, model, "ranks", scenario.trainer_gpus),
        engine_speed=_ratio(plan, model, "engine_gpus") * scenario.decoding, engines=scenario.engines,
        timeout_s=read(plan, model, "timeout_s"), scales=scenario.scales)
    inline, entry = load_plugin(Role.FABRIC, "inline")
    parts = {role: replace(part, descriptor=_IN_PLACE[role], config=config) if role in _IN_PLACE else part
             for role, part in plan.parts.items()}
    parts[Role.FABRIC] = replace(plan.parts[Role.FABRIC], descriptor=inline, config=inline.config(),
                                 distribution=entry.distribution, version=entry.version)
    return replace(
        plan, parts=parts, observers=(),
        checkpoint=PolicyFacts(Path(), profile.policy.max_context, 1), transport=_plugins.TRANSPORT,
        incomparable="nothing is computed in a simulation", tasks=_tasks(plan), missing=(),
        modelled=f"{model.name}: {model.source}", passes_at=counts)


def read(plan: Plan, model: Model, what: str) -> float | None:
    """What the profile says of ``what``, by the model's own account of where that stands; None where it does not."""
    value = setting(plan, model.reads.get(what, ""))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def setting(plan: Plan, key: str) -> Any:
    """The value at a dotted key of the resolved profile; None where it has no such place."""
    value: Any = plan.resolved
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _ratio(plan: Plan, model: Model, name: str, ratio: float = 1.0) -> float:
    """How much faster than at calibration so many more GPUs are, ``ratio`` times the plan's. A 0 leaves the number to
    the machine and says nothing."""
    here, there = read(plan, model, name), model.like.get(model.reads.get(name, ""))
    if here and isinstance(there, int | float) and there:
        ratio *= here / there
    return 1 + (ratio - 1) * model.assumptions.scaling


def _tasks(plan: Plan) -> dict[str, list[Task]]:
    """Tasks of the same names and number, as far as they are known here."""
    found = {}
    for split in {plan.profile.grpo.split, plan.profile.validation.split}:
        listed = plan.tasks.get(split) or ()
        names = [task.id for task in listed] or [f"{split}-{number}" for number in range(_TASKS)]
        found[split] = [Task(name, split, {"statement": ""}, {}, name) for name in names]
    if plan.profile.validation.max_tasks is None and not plan.tasks.get(plan.profile.validation.split):
        raise InputError("how many tasks a validation has is not known here: its data is missing",
                         hint="set validation.max_tasks")
    return found
