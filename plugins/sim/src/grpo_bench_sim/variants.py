"""The variants of a plan that are worth asking about. Each changes settings, where a plan can be made of them, or what
a simulation takes for granted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from grpo_bench.contract import Role
from grpo_bench.engine import due_steps

from .model import Model, Quantity
from .standing import Scenario, read

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

_AGES = (0, 1, 2, 4)
_MOVED = 4
"""One of so many of the trainer's GPUs is moved."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One thing that is different. ``instead`` is what is simulated where no plan can be made with ``overrides``."""

    name: str
    overrides: tuple[str, ...]
    scenario: Scenario
    instead: Scenario | None = None


def variants(plan: Plan, model: Model, scenario: Scenario) -> list[Variant]:
    """Those that mean something for this plan."""
    return [*_of_schedule(plan, scenario), *_of_concurrency(plan, scenario), *_of_split(plan, model, scenario),
            *_of_durations(plan, model, scenario), *_of_evaluation(plan, scenario), *_of_checkpoints(plan, scenario)]


def _of_schedule(plan: Plan, scenario: Scenario) -> list[Variant]:
    """Of an asynchronous profile. Where prompts in flight are limited to those of the steps that its age allows, they
    go with the age."""
    schedule, prompts = plan.profile.schedule, plan.profile.grpo.prompts_per_step
    if schedule.mode == "sync":
        return []
    limited = schedule.prompts_in_flight == prompts * schedule.max_age
    found = []
    for age in _AGES:
        limit = (f"schedule.prompts_in_flight={prompts * max(1, age)}",) if limited else ()
        mode = () if age else ("schedule.mode=sync",)
        if age != schedule.max_age:
            name = f"max age {age}" if age else "max age 0: synchronous"
            found.append(Variant(name, (*mode, f"schedule.max_age={age}", *limit), scenario))
    other, name = (("keep", "refits with rollouts in flight") if schedule.in_flight == "drain" else
                   ("drain", "refits that wait for rollouts"))
    found.append(Variant(name, (f"schedule.in_flight={other}",), scenario))
    if schedule.prompts_in_flight is None:
        most = prompts * schedule.max_age
        found.append(Variant(f"at most {most} prompts in flight", (f"schedule.prompts_in_flight={most}",), scenario))
    else:
        found.append(Variant("no limit to prompts in flight", ("schedule.prompts_in_flight=off",), scenario))
    return found


def _of_concurrency(plan: Plan, scenario: Scenario) -> list[Variant]:
    each = plan.profile.limits.concurrency
    workers = plan.profile.rollout.workers or plan.placements[Role.GENERATOR.value].workers
    return [Variant(f"{name} the concurrency" + (f": {workers * other} rollouts" if workers else ""),
                    (f"limits.concurrency={other}",), scenario)
            for name, other in (("half", each // 2), ("twice", each * 2)) if other]


def _of_split(plan: Plan, model: Model, scenario: Scenario) -> list[Variant]:
    """The same GPUs, divided otherwise: a quarter of the trainer's moved, and as many more for it as it has."""
    ranks, engines, size = (read(plan, model, what) for what in ("ranks", "engines", "engine_gpus"))
    if not ranks or not engines or not size:
        return []
    found = []
    for moved in (-ranks / _MOVED, ranks / _MOVED, ranks):
        train, serve = ranks + moved, engines - moved / size
        if serve < 1 or train < 1 or serve != int(serve) or train != int(train):
            continue
        overrides = [f"{model.reads['ranks']}={train:.0f}", f"{model.reads['engines']}={serve:.0f}"]
        if nodes := read(plan, model, "policy_nodes"):
            overrides.append(f"{model.reads['policy_nodes']}={round(nodes * train / ranks)}")
        found.append(Variant(
            f"{train:.0f} GPUs to train, {serve * size:.0f} to generate", tuple(overrides), scenario,
            replace(scenario, trainer_gpus=scenario.trainer_gpus * train / ranks,
                    engines=scenario.engines * serve / engines)))
    return found


def _of_durations(plan: Plan, model: Model, scenario: Scenario) -> list[Variant]:
    found = []
    if any(model.stalls.order) or model.stalls.sudden_share:
        found += [_scaled("half the stalls", scenario, Quantity.STALLS, 0.5),
                  _scaled("no stalls", scenario, Quantity.STALLS, 0.0)]
    if timeout := read(plan, model, "timeout_s"):
        found.append(Variant(f"agent's time-out of {timeout / 2:g} s",
                             (f"{model.reads['timeout_s']}={timeout / 2:g}",), scenario))
    return [*found, _scaled("updates in half the time", scenario, Quantity.UPDATE, 0.5),
            Variant("decoding twice as fast", (), replace(scenario, decoding=scenario.decoding * 2))]


def _of_evaluation(plan: Plan, scenario: Scenario) -> list[Variant]:
    validation = plan.profile.validation
    if not due_steps(plan):
        return []
    if validation.deferred:
        return [Variant("inline evaluation", ("validation.deferred=false",), scenario)]
    early = ("validation.at_start=false",) if validation.at_start else ()
    return [Variant("deferred evaluation", ("validation.deferred=true", *early), scenario)]


def _of_checkpoints(plan: Plan, scenario: Scenario) -> list[Variant]:
    checkpoint = plan.profile.checkpoint
    if not (checkpoint.period or checkpoint.final or plan.profile.validation.deferred):
        return []
    return [_scaled("checkpoints written 4 times as fast", scenario, Quantity.CHECKPOINT, 0.25),
            _scaled("checkpoints written a quarter as fast", scenario, Quantity.CHECKPOINT, 4.0),
            _scaled("checkpoints that take no time", scenario, Quantity.CHECKPOINT, 0.0)]


def _scaled(name: str, scenario: Scenario, quantity: Quantity, factor: float) -> Variant:
    scales = {**scenario.scales, quantity: scenario.scales.get(quantity, 1.0) * factor}
    return Variant(name, (), replace(scenario, scales=scales))
