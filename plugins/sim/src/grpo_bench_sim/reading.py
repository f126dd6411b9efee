"""What a journal says about times, simulated or not: the figures that models are fitted to and simulations tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from grpo_bench.contract import Event, Kind, Phase
from grpo_bench.observers import PhaseLedger

WAITING = (Phase.ROLLOUT.value, Phase.DRAIN.value)
"""Phases in which the trainer waits for rollouts, of its batch or of the next one before a refit."""
APART = frozenset({Phase.VALIDATION.value, Phase.CHECKPOINT.value})
"""Phases that do not come with every step."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step that is over, in seconds. ``wall`` is from its first to its last phase, validations and checkpoints left
    out; ``phases`` is what of it each phase took. The refit before the first step belongs to none."""

    step: int
    wall: float
    phases: Mapping[str, float]
    tokens: float
    rows: int

    @property
    def exposed(self) -> float:
        """Exposed generation: what the trainer waits for rollouts."""
        return sum(self.phases.get(phase, 0.0) for phase in WAITING)


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run, in seconds, all attempts together. ``start`` is the first start-up; ``ledger`` the whole wall clock by
    phase; ``validations`` and ``checkpoints`` as (step, seconds), ``saved`` the seconds of those checkpoints that hold
    weights to be evaluated. ``score`` is from the end of that start-up to the moment that counts: the end of the
    validation that met the target or, where the evaluation is deferred, the end of the update of ``counts``, the first
    step that is taken to meet it; None where there is no such moment. ``counted`` is that time by phase."""

    status: str
    start: float
    steps: tuple[StepTimes, ...]
    validations: tuple[tuple[int, float], ...]
    checkpoints: tuple[tuple[int | None, float], ...]
    ledger: Mapping[str, float]
    wall: float
    score: float | None
    counted: Mapping[str, float] = field(default_factory=dict)
    saved: tuple[float, ...] = ()

    @property
    def first(self) -> float:
        """From the end of the start-up to the end of the first step, the refit before it with it."""
        refits = self.ledger.get(Phase.REFIT, 0.0) - sum(step.phases.get(Phase.REFIT, 0.0) for step in self.steps)
        return refits + self.steps[0].wall

    def median(self, phase: str | None = None) -> float:
        """Median over the steps from the second on, of their wall time or of one phase; 0 where there is no such
        step."""
        values = [step.wall if phase is None else step.phases.get(phase, 0.0) for step in self.steps[1:]]
        return median(values) if values else 0.0


def scores_of(runs: Iterable[RunTimes]) -> list[float]:
    """The seconds to target of all of them; empty where one has no such time."""
    scores = [run.score for run in runs]
    found = [score for score in scores if score is not None]
    return found if len(found) == len(scores) else []


def times_of(events: Iterable[Event], counts: int | None = None) -> RunTimes:
    """The times in a journal's events. ``counts`` is the first step that is taken to meet the target, if one is."""
    reader = _Reader(counts)
    for event in events:
        reader.add(event)
    return reader.times()


class _Reader:
    """Follows a journal. What a resumption made undone is forgotten, as the ledger forgets it."""

    def __init__(self, counts: int | None) -> None:
        self._counts = counts
        self._deferred = False
        self._ledger = PhaseLedger()
        self._status = ""
        self._start: float | None = None
        self._before = self._now = 0.0
        self._batches: dict[int, tuple[float, int]] = {}
        self._over: set[int] = set()
        self._validations: list[tuple[int, float]] = []
        self._checkpoints: list[tuple[int | None, float, bool]] = []
        self._moment: tuple[float, Mapping[str, float]] | None = None

    def add(self, event: Event) -> None:
        self._ledger.add(event)
        data, step = event.data, event.step
        if event.kind == Kind.RUN_STARTED:
            self._deferred = bool(data.get("settings", {}).get("validation", {}).get("deferred"))
        elif event.kind == Kind.RESUMED:
            self._before += self._now
            self._undo(data["from_step"])
        elif event.kind == Kind.PHASE and self._start is None and data["phase"] != Phase.STARTUP:
            self._start = self._before + event.elapsed_s
        elif event.kind == Kind.BATCH and step is not None:
            self._batches[step] = (float(data.get("n_tokens", 0)), int(data["rollouts"]))
        elif event.kind == Kind.UPDATE and self._deferred and step is not None and step == self._counts:
            self._moment = self._before + event.elapsed_s, self._ledger.phases(event.elapsed_s)
        elif event.kind == Kind.STEP and step is not None:
            self._over.add(step)
        elif event.kind == Kind.VALIDATION:
            self._validations.append((step or 0, data["seconds"]))
            if data["target_met"] and self._moment is None:
                self._moment = self._before + event.elapsed_s, self._ledger.phases(event.elapsed_s)
        elif event.kind == Kind.CHECKPOINT:
            self._checkpoints.append((step, data["seconds"], "updated_at" in data))
        elif event.kind == Kind.RUN_ENDED:
            self._status = data["status"]
        self._now = event.elapsed_s

    def times(self) -> RunTimes:
        began = self._start or 0.0
        at, spent = self._moment or (None, {})
        counted = {phase: seconds - began * (phase == Phase.STARTUP) for phase, seconds in spent.items()}
        return RunTimes(
            self._status, began, tuple(self._steps()), tuple(self._validations),
            tuple((step, seconds) for step, seconds, _ in self._checkpoints),
            self._ledger.phases(self._now), self._before + self._now, None if at is None else at - began,
            {phase: seconds for phase, seconds in counted.items() if seconds > 0},
            tuple(seconds for _, seconds, weights in self._checkpoints if weights))

    def _undo(self, from_step: int) -> None:
        self._status = ""
        self._over = {step for step in self._over if step <= from_step}
        self._validations = [item for item in self._validations if item[0] <= from_step]
        self._checkpoints = [item for item in self._checkpoints if (item[0] or 0) <= from_step]
        if self._moment is not None and (self._counts or 0) > from_step:
            self._moment = None

    def _steps(self) -> Iterable[StepTimes]:
        spent = self._ledger.steps()
        for step in sorted(self._over & self._batches.keys()):
            phases = {phase: seconds for phase, seconds in spent.get(step, {}).items() if phase not in APART}
            tokens, rows = self._batches[step]
            yield StepTimes(step, sum(phases.values()), phases, tokens, rows)
