"""The evaluation that follows a training which deferred it: every weight that was saved, in order, until one passes.

Nothing else is in flight then, so a validation is simulated once for each seed, on its own, and counted as often as the
assumption about the target asks for. Before each the weights are read, as fast as they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from grpo_bench.contract import Role

from .model import Model
from .simulation import Simulation, simulate
from .standing import Scenario

if TYPE_CHECKING:
    from grpo_bench.registry import Plan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``weights`` of the ``saved`` ones are evaluated, the last of them being the first that pass, if any do. Seconds,
    one for each replica: of a ``validation``, of ``reading`` the weights before it, and ``whole``, the start-up of the
    evaluation's own process among it."""

    weights: int
    saved: int
    validation: tuple[float, ...]
    reading: tuple[float, ...]
    whole: tuple[float, ...]


def evaluation(simulation: Simulation, due: Sequence[int], seeds: Sequence[int]) -> Evaluation | None:
    """That of a simulation whose plan has a validation due after the steps ``due``; None where none is deferred."""
    if not due or not simulation.plan.profile.validation.deferred:
        return None
    weights = len(due) if simulation.counts is None else due.index(simulation.counts) + 1
    spent = validations(simulation.plan, simulation.model, simulation.scenario, seeds)
    reading = tuple(median(run.saved) for run in simulation.runs)
    whole = tuple(run.start + weights * (each + read) for run, each, read in zip(simulation.runs, spent, reading))
    return Evaluation(weights, len(due), spent, reading, whole)


def validations(plan: Plan, model: Model, scenario: Scenario, seeds: Sequence[int]) -> tuple[float, ...]:
    """Seconds of one validation of the plan's under each of the seeds, nothing else being in flight."""
    found = simulate(_validating(plan), model, replace(scenario, passes_at=0), seeds, None)
    return tuple(run.validations[0][1] for run in found.runs)


def _validating(plan: Plan) -> Plan:
    """A plan of the same parts that validates before its first step and is over then, whatever comes of it."""
    profile = plan.profile
    now = profile.validation.model_copy(update={
        "deferred": False, "at_start": True, "metric": "accuracy", "target": 0.0})
    return replace(
        plan, profile=profile.model_copy(update={"validation": now}), observers=(),
        parts={role: part for role, part in plan.parts.items() if role is not Role.RULESET},
        resolved={**plan.resolved, "validation": now.model_dump(mode="json")})
