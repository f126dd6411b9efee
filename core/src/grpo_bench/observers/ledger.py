"""Where the time went, from events alone.

Two ledgers. The *phase ledger* covers the wall clock: from the start of the process on, every second belongs to
exactly one phase of the engine's critical path, since each ``phase`` event ends the phase before it. What a run that
was interrupted spent waiting to be resumed belongs to nobody. The *hop ledger* covers the rollouts, which overlap with
each other and with the phases: the time each spent in each hop, and those that took longest.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..contract import Event, Kind, Phase, Purpose

HOPS = ("queue", "sandbox_start", "generate", "environment", "score")
STRAGGLERS = {Purpose.TRAIN: 5, Purpose.VALIDATION: 3}
"""How many of the longest rollouts are kept, by purpose: a long validation should not hide what made steps long."""

_OUTSIDE = frozenset({Phase.STARTUP, Phase.SHUTDOWN})


class PhaseLedger:
    """Seconds by phase of one journal, in all and by step. The step of a phase is the one its event carries; start-up
    and shutdown belong to none, and neither do steps that a resumption made undone."""

    def __init__(self) -> None:
        self._phase: str = Phase.STARTUP
        self._step: int | None = None
        self._since = self._now = 0.0
        self._spent: defaultdict[int | None, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._updated: dict[int, dict[str, float]] = {}

    @property
    def since_s(self) -> float:
        """When the phase that is open began, by the clock of its attempt."""
        return self._since

    def add(self, event: Event) -> None:
        if event.kind == Kind.PHASE:
            self._close(event.elapsed_s)
            self._phase, self._step = event.data["phase"], event.step
        elif event.kind == Kind.RUN_ENDED:
            self._close(event.elapsed_s)
        elif event.kind == Kind.UPDATE and event.step is not None:
            self._close(event.elapsed_s)
            self._updated[event.step] = _sum(self._spent[None], self._spent[event.step])
        elif event.kind == Kind.RESUMED:
            self._close(self._now)
            self._phase, self._step, self._since = Phase.STARTUP, None, 0.0
            self._undo(event.data["from_step"])
        self._now = event.elapsed_s

    def phases(self, until_s: float | None = None) -> dict[str, float]:
        """Phase -> seconds, in the order of the phases; the open phase counts up to ``until_s``, or not at all."""
        total = _sum(*self._spent.values())
        if until_s is not None:
            total[self._phase] += max(0.0, until_s - self._since)
        return in_order(total)

    def until(self, step: int, at_s: float) -> dict[str, float]:
        """Phase -> seconds until ``at_s`` of all attempts, a moment in the update of ``step``."""
        spent = _sum(self._updated[step], *(spent for number, spent in self._spent.items()
                                            if number is not None and number < step))
        spent[Phase.UPDATE] -= sum(spent.values()) - at_s
        return in_order(spent)

    def steps(self) -> dict[int, dict[str, float]]:
        """Step -> phase -> seconds; what belongs to no step is left out."""
        return {step: in_order(spent) for step, spent in self._spent.items() if step is not None}

    def _undo(self, from_step: int) -> None:
        for step in [step for step in self._spent if step is not None and step > from_step]:
            for phase, seconds in self._spent.pop(step).items():
                self._spent[None][phase] += seconds

    def _close(self, at_s: float) -> None:
        self._spent[None if self._phase in _OUTSIDE else self._step][self._phase] += max(0.0, at_s - self._since)
        self._since = at_s


def _sum(*parts: Mapping[str, float]) -> defaultdict[str, float]:
    total: defaultdict[str, float] = defaultdict(float)
    for spent in parts:
        for phase, seconds in spent.items():
            total[phase] += seconds
    return total


def in_order(spent: Mapping[str, float]) -> dict[str, float]:
    """The phases that took any time, in the order a step goes through them; unknown ones last."""
    names = [phase.value for phase in Phase if phase.value in spent]
    return {name: spent[name] for name in [*names, *sorted(spent.keys() - set(names))]}


def apart(part_s: float, whole_s: float) -> float | None:
    """Seconds by which one account of a time misses the other, where that is more than 0.1 % and 50 ms; else None."""
    missing = whole_s - part_s
    return missing if abs(missing) > max(0.05, 1e-3 * whole_s) else None


def unaccounted(phases: Mapping[str, float], wall_s: float) -> float | None:
    """Seconds by which the phases' sum misses the wall clock, where they are :func:`apart`; else None."""
    return apart(sum(phases.values()), wall_s)


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rollout that took long, in seconds, and the hop that most of it went to."""

    seconds: float
    rollout_id: str
    task_id: str
    purpose: str
    end: str
    step: int | None
    hop: str
    hop_seconds: float


@dataclass(slots=True)
class Hop:
    """One hop over all rollouts: seconds in all, and the longest."""

    total: float = 0.0
    longest: float = 0.0


@dataclass(slots=True)
class HopLedger:
    """Rollout-side time. ``rollouts`` counts attempts, retried ones included."""

    rollouts: int = 0
    hops: dict[str, Hop] = field(default_factory=dict)
    _longest: dict[str, list[tuple[float, int, Straggler]]] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        if event.kind != Kind.ROLLOUT:
            return
        self.rollouts += 1
        durations: Mapping[str, float] = event.data["durations"]
        for name, seconds in durations.items():
            hop = self.hops.setdefault(name, Hop())
            hop.total += seconds
            hop.longest = max(hop.longest, seconds)
        total = sum(durations.values())
        longest = self._longest.setdefault(event.data["purpose"], [])
        if len(longest) < STRAGGLERS[Purpose(event.data["purpose"])]:
            heapq.heappush(longest, (total, -self.rollouts, _straggler(event, total)))
        elif total > longest[0][0]:
            heapq.heapreplace(longest, (total, -self.rollouts, _straggler(event, total)))

    @property
    def seconds(self) -> float:
        """Time of all rollouts together."""
        return sum(hop.total for hop in self.hops.values())

    def stragglers(self) -> list[Straggler]:
        """The longest rollouts of training and of validation, longest first."""
        found = [item for longest in self._longest.values() for item in longest]
        return [item[2] for item in sorted(found, key=lambda item: item[:2], reverse=True)]

    def in_order(self) -> list[tuple[str, Hop]]:
        """Hops in the order a rollout goes through them; unknown ones last."""
        names = [*(name for name in HOPS if name in self.hops), *sorted(self.hops.keys() - set(HOPS))]
        return [(name, self.hops[name]) for name in names]


def _straggler(event: Event, total: float) -> Straggler:
    data = event.data
    hop = max(data["durations"], key=data["durations"].__getitem__, default="")
    return Straggler(total, data["rollout_id"], data["task_id"], data["purpose"], data["end"], event.step, hop,
                     data["durations"].get(hop, 0.0))

