"""The evaluation that follows a training which deferred it: every weight that was saved, in order, until one passes.

Nothing else is in flight then, so a validation is simulated on its own, once for each seed and each law that rollouts
of the evaluated weights have. What its process takes besides is the model's own or, where that knows none, what the
training takes: to start and to shut down, and to read weights as long as to write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from grpo_bench.contract import Phase, Purpose, Role

from .config import PartConfig
from .model import Model, Quantity, Rollouts
from .reading import RunTimes
from .rollouts import rollouts_of
from .simulation import Simulation, simulate
from .standing import Scenario

if TYPE_CHECKING:
    from grpo_bench.registry import Plan


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``weights`` of the ``saved`` ones are evaluated, the last of them being the first that pass, if any do. Seconds,
    one for each replica: of a ``validation`` and of ``reading`` the weights before it, means over the weights, and the
    ``whole``, start-up and shutdown of the evaluation's own process among it."""

    weights: int
    saved: int
    validation: tuple[float, ...]
    reading: tuple[float, ...]
    whole: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Around:
    """What a process takes besides validations: ``process`` to start and to shut down, and a mean ``reading``."""

    process: float
    reading: float


def evaluation(simulation: Simulation, due: Sequence[int], seeds: Sequence[int]) -> Evaluation | None:
    """That of a simulation whose plan has a validation due after the steps ``due``; None where none is deferred.
    GrpoBenchError where a validation fails."""
    if not due or not simulation.plan.profile.validation.deferred:
        return None
    steps = due if simulation.counts is None else due[:due.index(simulation.counts) + 1]
    spent = _means(simulation, steps, seeds)
    around = [_around(simulation, run, steps, seed) for run, seed in zip(simulation.runs, seeds)]
    return Evaluation(
        len(steps), len(due), spent, tuple(found.reading for found in around),
        tuple(found.process + len(steps) * (found.reading + each) for found, each in zip(around, spent)))


def validations(plan: Plan, model: Model, scenario: Scenario, seeds: Sequence[int], step: int = 0) -> tuple[float, ...]:
    """Seconds of one validation of the weights after ``step`` under each of the seeds, nothing else being in flight."""
    alone = model.model_copy(update={"validation": (_law(model, step),)})
    found = simulate(_validating(plan), alone, replace(scenario, passes_at=0), seeds, None)
    return tuple(run.validations[0][1] for run in found.runs)


def _means(simulation: Simulation, steps: Sequence[int], seeds: Sequence[int]) -> tuple[float, ...]:
    """Mean seconds of the validations after ``steps``, for each seed; those of one law take equally long."""
    model, found = simulation.model, {}
    for step in steps:
        if (law := _law(model, step)) not in found:
            found[law] = validations(simulation.plan, model, simulation.scenario, seeds, step)
    return tuple(map(fmean, zip(*(found[_law(model, step)] for step in steps))))


def _law(model: Model, step: int) -> Rollouts:
    return rollouts_of(PartConfig(model=model), Purpose.VALIDATION, step)


def _around(simulation: Simulation, run: RunTimes, steps: Sequence[int], seed: int) -> _Around:
    own = simulation.model.evaluation
    if own is None:
        return _Around(run.start + run.ledger.get(Phase.SHUTDOWN, 0.0), fmean(run.saved[:len(steps)]))
    config = PartConfig(model=simulation.model, seed=seed, scales=simulation.scenario.scales)
    start = own.start.draw(config.stream("evaluation", "start")) * config.scale(Quantity.START)
    shutdown = own.shutdown.draw(config.stream("evaluation", "shutdown")) * config.scale(Quantity.SHUTDOWN)
    reading = fmean(own.reading.draw(config.stream("evaluation", "reading", step)) for step in steps)
    return _Around(start + shutdown, reading * config.scale(Quantity.CHECKPOINT))


def _validating(plan: Plan) -> Plan:
    """A plan of the same parts that validates before its first step and is over then, whatever comes of it."""
    profile = plan.profile
    now = profile.validation.model_copy(update={
        "deferred": False, "at_start": True, "metric": "accuracy", "target": 0.0})
    return replace(
        plan, profile=profile.model_copy(update={"validation": now}), observers=(),
        parts={role: part for role, part in plan.parts.items() if role is not Role.RULESET},
        resolved={**plan.resolved, "validation": now.model_dump(mode="json")})
