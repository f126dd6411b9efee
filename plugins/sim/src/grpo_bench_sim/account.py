"""What simulated replicas come to: how long, where the time goes, and what is known of each part of it.

All of it is seconds, as medians over the replicas with least and most beside. Rewards, losses and accuracies mean
nothing in a simulation and have no place here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from grpo_bench.contract import Phase

from .evaluating import Evaluation
from .model import Quantity
from .reading import WAITING, RunTimes, scores_of
from .simulation import Simulation
from .statuses import WORST, Kind, Standing

_QUANTITIES: Mapping[str, tuple[Quantity, ...]] = {
    Phase.STARTUP.value: (Quantity.START,),
    Phase.ROLLOUT.value: (Quantity.ROLLOUT, Quantity.STALLS),
    Phase.LOG_PROBABILITIES.value: (Quantity.LOG_PROBABILITIES, Quantity.DRIVER, Quantity.FIRST_STEP),
    Phase.UPDATE.value: (Quantity.UPDATE, Quantity.FIRST_STEP),
    Phase.DRAIN.value: (Quantity.ROLLOUT, Quantity.STALLS),
    Phase.REFIT.value: (Quantity.REFIT, Quantity.FIRST_STEP),
    Phase.VALIDATION.value: (Quantity.VALIDATION,),
    Phase.CHECKPOINT.value: (Quantity.CHECKPOINT,),
    Phase.SHUTDOWN.value: (Quantity.SHUTDOWN,),
}
"""The quantities that a phase is made of; the time of others is the simulation's own, which is none."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds over the replicas."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Deciles:
    """Seconds over steps, validations or checkpoints of all replicas."""

    median: float
    q10: float
    q90: float


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase of the ledger: seconds of a run, of these what is before the moment that counts, its share of the run,
    what one step of it takes from the second on (of validations and checkpoints: one of them) where there is one, and
    the worst standing of what it is made of."""

    phase: str
    seconds: float
    counted: float
    share: float
    each: Deciles | None
    standing: Kind | None


@dataclass(frozen=True, slots=True)
class Account:
    """``target`` is from the end of start-up to the moment that counts, None where no such moment is assumed; ``ended``
    is the end of the training, ``whole`` that of the evaluation after it, None where that fails. ``step`` is the wall
    time of a step from the second on. ``waits`` is the share of the time after start-up in which the trainer waits for
    rollouts."""

    startup: Spread
    target: Spread | None
    ended: Spread
    evaluation: Evaluation | None
    whole: Spread | None
    step: Deciles | None
    phases: tuple[PhaseTime, ...]
    waits: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def account(simulation: Simulation, evaluation: Evaluation | None, standings: Sequence[Standing], *,
            failed: bool = False) -> Account:
    """``failed``: there is an evaluation, of which nothing is known."""
    runs = simulation.runs
    scores = scores_of(runs)
    after = evaluation.whole if evaluation else [0.0] * len(runs)
    return Account(
        startup=spread(run.start for run in runs), target=spread(scores) if scores else None,
        ended=spread(run.wall for run in runs), evaluation=evaluation,
        whole=None if failed else spread(run.wall + more for run, more in zip(runs, after)),
        step=quantiles(step.wall for run in runs for step in run.steps[1:]),
        phases=tuple(_phases(runs, {standing.quantity: standing.kind for standing in standings})),
        waits=median(_waited(run) for run in runs))


def spread(seconds: Iterable[float]) -> Spread:
    values = sorted(seconds)
    return Spread(median(values), values[0], values[-1])


def quantiles(seconds: Iterable[float]) -> Deciles | None:
    """None of no values."""
    values = list(seconds)
    return Deciles(*(float(np.quantile(values, share)) for share in (0.5, 0.1, 0.9))) if values else None


def _waited(run: RunTimes) -> float:
    after = sum(run.ledger.values()) - run.ledger.get(Phase.STARTUP.value, 0.0)
    return sum(run.ledger.get(phase, 0.0) for phase in WAITING) / after if after else 0.0


def _phases(runs: Sequence[RunTimes], kinds: Mapping[Quantity, Kind]) -> Iterable[PhaseTime]:
    """Those that take time in any of the runs, in the order of a step."""
    wall = sum(median(run.ledger.get(phase.value, 0.0) for run in runs) for phase in Phase)
    for phase in (phase.value for phase in Phase):
        spent = [run.ledger.get(phase, 0.0) for run in runs]
        if any(spent):
            known = {kinds[quantity] for quantity in _QUANTITIES.get(phase, ()) if quantity in kinds}
            counted = median(run.counted.get(phase, 0.0) for run in runs)
            yield PhaseTime(phase, median(spent), counted, median(spent) / wall if wall else 0.0,
                            quantiles(_each(runs, phase)), next((kind for kind in WORST if kind in known), None))


def _each(runs: Sequence[RunTimes], phase: str) -> Iterable[float]:
    if phase == Phase.VALIDATION:
        return (seconds for run in runs for _, seconds in run.validations)
    if phase == Phase.CHECKPOINT:
        return (seconds for run in runs for _, seconds in run.checkpoints)
    if phase in (Phase.STARTUP, Phase.SHUTDOWN):
        return ()
    return (step.phases.get(phase, 0.0) for run in runs for step in run.steps[1:])
