"""What a run's journal says about the times of its parts: the raw figures that a model of it is made of.

A *rollout* here is one that the engine wanted, with all attempts at it: what it took is the work of them together,
without the time any of them waited in a queue. Where refits leave rollouts in flight, the time these stood still is no
work either. Where all rollouts are asked for at once, how long the last one was on its way besides is known, and each
is taken to have been. Rollouts of a step count once the step is over, those of a validation once that is; what a
resumed run did again counts as it was done last. Phases are those of the attempt that finished the step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_bench.contract import Event, Kind, Phase, Purpose

_APART = frozenset({Phase.VALIDATION, Phase.CHECKPOINT, Phase.STARTUP, Phase.SHUTDOWN})
_QUEUE = "queue"
_WAY = "way"
"""The hop between the engine and a worker, and back."""


@dataclass(frozen=True, slots=True)
class Rolled:
    """One rollout: seconds by hop, seconds that it ``waited`` in queues, and sampled tokens and turns of its last
    attempt."""

    hops: Mapping[str, float]
    waited: float
    tokens: int
    turns: int

    @property
    def seconds(self) -> float:
        return sum(self.hops.values())


@dataclass(frozen=True, slots=True)
class Step:
    """A step that is over: seconds by phase, its rollouts that are samples and their tokens. ``fresh``: the first of
    its process."""

    phases: Mapping[str, float]
    rollouts: int
    tokens: int
    fresh: bool


@dataclass(slots=True)
class Evaluated:
    """A deferred evaluation, in seconds: its first ``start``, None where that did not come to its end, its last
    ``shutdown``, and the ``reading`` of all weights, which is all that they take but their validation: to get into the
    engines, and to record what came of them."""

    start: float | None = None
    shutdown: float = 0.0
    reading: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Observed:
    """A run. ``train`` and ``validation`` are rollouts by step and by weight version; ``saved`` the seconds of
    checkpoints by what was written; ``first_refit`` those of the refit before all rollouts; ``weights_bytes`` the size
    of what refits move; ``met`` the first step whose validation met the target."""

    started: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""
    start: float | None = None
    shutdown: float = 0.0
    first_refit: float | None = None
    steps: dict[int, Step] = field(default_factory=dict)
    train: dict[int, list[Rolled]] = field(default_factory=dict)
    validation: dict[int, list[Rolled]] = field(default_factory=dict)
    evaluation: Evaluated = field(default_factory=Evaluated)
    saved: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    met: int | None = None
    weights_bytes: int = 0

    @property
    def later(self) -> list[Step]:
        """Steps that are not the first of their process."""
        return [step for step in self.steps.values() if not step.fresh]


def observe(events: Iterable[Event]) -> Observed:
    """The figures of a run's events, those of its deferred evaluation among them, in order."""
    watch = _Watch()
    for event in events:
        watch.add(event)
    return watch.finish()


@dataclass(slots=True)
class _Attempt:
    """One process: the phase that is open, what every step spent, the steps that are over, and when engines stood
    still."""

    phase: str = Phase.STARTUP
    step: int | None = None
    since: float = 0.0
    written: str | None = None
    spent: dict[int | None, dict[str, float]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(float)))
    over: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    stood: list[tuple[float, float]] = field(default_factory=list)


_Tries = list[tuple[Event, _Attempt]]
"""The attempts at one rollout, each with the process that it was of."""


class _Watch:
    """Follows a journal. Rollouts of a deferred evaluation are as those of any validation; phases are its own."""

    def __init__(self) -> None:
        self._result = Observed()
        self._attempts = [_Attempt()]
        self._trained: defaultdict[int, dict[str, _Tries]] = defaultdict(dict)
        self._validated: dict[str, _Tries] = {}
        self._evaluates = False

    def add(self, event: Event) -> None:
        match event.kind:
            case Kind.RUN_STARTED:
                self._result.started, self._result.at = event.data, event.at
            case Kind.EVALUATION_STARTED | Kind.RESUMED:
                self._evaluates |= event.kind == Kind.EVALUATION_STARTED
                self._attempts.append(_Attempt())
                self._validated = {}
            case Kind.ROLLOUT:
                self._rollout(event)
            case Kind.VALIDATION:
                self._validation(event)
            case Kind.STEP if event.step is not None:
                self._attempts[-1].over[event.step] = event.data
            case Kind.REFIT if not self._evaluates:
                self._result.weights_bytes = event.data.get("bytes", 0)
            case Kind.CHECKPOINT:
                self._attempts[-1].written = event.data["what"]
            case Kind.PHASE | Kind.RUN_ENDED if self._evaluates:
                self._close_evaluated(event)
            case Kind.PHASE | Kind.RUN_ENDED:
                self._close(event)
            case _:
                pass

    def finish(self) -> Observed:
        result = self._result
        schedule = result.started.get("settings", {}).get("schedule", {})
        stands = schedule.get("in_flight") == "keep"
        at_once = not schedule.get("max_age") and not schedule.get("prompts_in_flight")
        for attempt in self._attempts:
            for step, data in attempt.over.items():
                result.steps[step] = Step(attempt.spent[step], data["rollouts"], data["sampled_tokens"],
                                          step == min(attempt.over))
        for number, step in result.steps.items():
            rolled = [_rolled(tries, stands) for tries in self._trained[number].values()]
            result.train[number] = _delivered(rolled, step.phases.get(Phase.ROLLOUT, 0.0)) if at_once else rolled
        return result

    def _rollout(self, event: Event) -> None:
        data, number = event.data, event.data.get("attempt", 0)
        name = data["rollout_id"].removesuffix(f"r{number}") if number else data["rollout_id"]
        step = data["group_id"] // (self._result.started["prompts_per_step"] or 1) + 1
        place = self._validated if data["purpose"] == Purpose.VALIDATION else self._trained[step]
        if not number:
            place[name] = []
        place.setdefault(name, []).append((event, self._attempts[-1]))

    def _validation(self, event: Event) -> None:
        version = event.step or 0
        self._result.validation[version] = _delivered(
            [_rolled(tries, False) for tries in self._validated.values()], event.data["seconds"])
        self._validated = {}
        if self._evaluates:
            self._result.evaluation.reading.append(
                max(0.0, event.elapsed_s - self._attempts[-1].since - event.data["seconds"]))
        if event.data["target_met"] and self._result.met is None:
            self._result.met = version

    def _close(self, event: Event) -> None:
        """The phase that was open is over. A drain after the end of a step is one before a validation."""
        result, attempt = self._result, self._attempts[-1]
        seconds = event.elapsed_s - attempt.since
        phase = event.data.get("phase", Phase.SHUTDOWN)
        if attempt.phase == Phase.STARTUP and phase != Phase.STARTUP and result.start is None:
            result.start = event.elapsed_s
        elif attempt.phase == Phase.SHUTDOWN:
            result.shutdown = seconds
        elif attempt.phase == Phase.CHECKPOINT and attempt.written is not None:
            result.saved[attempt.written].append(seconds)
        elif attempt.phase == Phase.REFIT:
            attempt.stood.append((attempt.since, event.elapsed_s))
            result.first_refit = seconds if result.first_refit is None else result.first_refit
        if attempt.phase not in _APART and not (attempt.phase == Phase.DRAIN and attempt.step in attempt.over):
            attempt.spent[attempt.step][attempt.phase] += seconds
        attempt.phase, attempt.step, attempt.since, attempt.written = phase, event.step, event.elapsed_s, None

    def _close_evaluated(self, event: Event) -> None:
        """The same of a deferred evaluation."""
        found, attempt = self._result.evaluation, self._attempts[-1]
        phase = event.data.get("phase", Phase.SHUTDOWN)
        if attempt.phase == Phase.STARTUP and phase == Phase.REFIT and found.start is None:
            found.start = event.elapsed_s
        elif attempt.phase == Phase.SHUTDOWN:
            found.shutdown = event.elapsed_s - attempt.since
        if phase not in (Phase.DRAIN, Phase.VALIDATION):  # these go on with the weights that a refit has read
            attempt.since = event.elapsed_s
        attempt.phase = phase


def _rolled(tries: _Tries, stands: bool) -> Rolled:
    """One rollout out of the attempts at it; ``stands``: engines stood still under refits while it was under way."""
    hops: defaultdict[str, float] = defaultdict(float)
    for event, attempt in tries:
        worked = {hop: seconds for hop, seconds in event.data["durations"].items() if hop != _QUEUE}
        if stands and worked.get("generate"):
            worked["generate"] -= _stood(event, worked, attempt.stood)
        for hop, seconds in worked.items():
            hops[hop] += seconds
    last, waited = tries[-1][0].data, sum(event.data["durations"].get(_QUEUE, 0.0) for event, _ in tries)
    return Rolled(hops, waited, last["sampled_tokens"], last["turns"])


def _delivered(rolled: Sequence[Rolled], whole_s: float) -> list[Rolled]:
    """Rollouts that were asked for at once, with their way to workers and back: what is left of the time until all had
    come back."""
    way = whole_s - max((rollout.waited + rollout.seconds for rollout in rolled), default=whole_s)
    return [replace(rollout, hops={**rollout.hops, _WAY: max(0.0, way)}) for rollout in rolled]


def _stood(event: Event, worked: Mapping[str, float], stood: Sequence[tuple[float, float]]) -> float:
    """Seconds of an attempt's ``generate`` in which the engines stood still: as much of what they did meanwhile as it
    was with them at all."""
    whole = sum(worked.values())
    began = event.elapsed_s - whole
    overlap = sum(max(0.0, min(end, event.elapsed_s) - max(start, began)) for start, end in stood)
    return overlap * worked["generate"] / whole
