"""What the report shows, folded from a run's events, one after the other.

Steps, validations and rollouts are those of the canonical history: a resumption takes back what it made undone. Time,
failures and notices cover every attempt. Of a rollout only its figures are kept, so that long runs fit into memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..contract import Event, Kind, Purpose
from ._text import metric_label
from .attribution import Failures, PluginTime, plugin_times
from .ledger import HopLedger
from .summary import Tally

NOTICES = (Kind.ALARM, Kind.STALL, Kind.ERROR)


@dataclass(slots=True)
class StepRow:
    """One step: what its events say, keyed as there."""

    step: int
    seq: int = 0
    elapsed_s: float = 0.0
    step_data: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    refit: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Validated:
    """One validation, at ``step`` (0: the base); ``elapsed_s`` counts over all attempts."""

    step: int
    seq: int
    elapsed_s: float
    data: dict[str, Any]


@dataclass(slots=True)
class Attempt:
    """One process's part of the run: how long it took, and what of it a later one made undone."""

    number: int
    from_step: int = 0
    seconds: float = 0.0
    forced: tuple[str, ...] = ()
    undone_s: float = 0.0
    undone_steps: int = 0
    undone_rollouts: int = 0


class _Rollout(NamedTuple):
    seq: int
    purpose: str
    turns: int
    tokens: int
    end: tuple[str, str]
    counted: Mapping[str, int]


@dataclass(slots=True)
class Rollouts:
    """The rollouts of one purpose: how many had how many turns and sampled tokens, how they ended, and what happened in
    how many of them, by name: their counters, and ``retries``."""

    turns: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    counted_in: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return self.ends.total()


class RunView:
    """A run after the events it was fed."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.tally = Tally()
        self.hops = HopLedger()
        self.failures = Failures()
        self.messages: dict[tuple[str, str], str] = {}
        self.notices: list[Event] = []
        self.steps: list[StepRow] = []
        self.validations: list[Validated] = []
        self.attempts = [Attempt(1)]
        self.going_on = False
        """Whether a process is still at it; events cannot tell."""
        self._rollouts: list[_Rollout] = []
        self._rows: dict[int, StepRow] = {}
        self._saved: list[tuple[int, float]] = [(0, 0.0)]
        self._settings: Mapping[str, Any] | None = None
        self._before_s = self._undone_s = 0.0
        self._setting_up = False
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        for part in (self.tally, self.hops, self.failures):
            part.add(event)
        if event.kind in NOTICES:
            self.notices.append(event)
        if event.kind == Kind.RESUMED:
            self._resume(event)
        elif event.step is not None or not self._setting_up:
            self._setting_up = False
            self._take(event)
        self.attempts[-1].seconds = max(self.attempts[-1].seconds, event.elapsed_s)

    @property
    def summary(self) -> dict[str, Any]:
        return self.tally.summary()

    @property
    def started(self) -> Mapping[str, Any]:
        return self.tally.started

    @property
    def settings(self) -> Mapping[str, Any]:
        """The resolved profile of the latest attempt; empty where the journal does not say."""
        return self._settings or self.started.get("settings") or {}

    @property
    def rollouts(self) -> dict[Purpose, Rollouts]:
        found = {purpose: Rollouts() for purpose in Purpose}
        for rollout in self._rollouts:
            side = found[Purpose(rollout.purpose)]
            side.turns[rollout.turns] += 1
            side.tokens[rollout.tokens] += 1
            side.ends[rollout.end] += 1
            side.counted.update(rollout.counted)
            side.counted_in.update(rollout.counted.keys())
        return found

    @property
    def plugins(self) -> list[PluginTime]:
        hops = {name: hop.total for name, hop in self.hops.in_order()}
        return plugin_times(self.started.get("parts", {}), self.summary["ledger"], hops, self.failures)

    @property
    def metric(self) -> str:
        """The metric shown: the one that ends the run, else pass_k or accuracy."""
        chosen = self.started.get("metric")
        return chosen or ("pass_k" if self.validations and self.validations[0].data["k"] > 1 else "accuracy")

    @property
    def metric_name(self) -> str:
        return metric_label(self.metric, self.validations[0].data["k"] if self.validations else None)

    def _take(self, event: Event) -> None:
        step, data = event.step or 0, dict(event.data)
        match event.kind:
            case Kind.ROLLOUT:
                end = (data["end"], data["cause"] or "")
                counted = {**data.get("counters", {}), "retries": int(data.get("attempt", 0) > 0)}
                self._rollouts.append(_Rollout(event.seq, data["purpose"], data["turns"], data["sampled_tokens"], end,
                                               {name: count for name, count in counted.items() if count}))
                if data["message"]:
                    self.messages.setdefault(end, data["message"])
            case Kind.VALIDATION:
                self.validations.append(Validated(step, event.seq, self._before_s + event.elapsed_s, data))
            case Kind.CHECKPOINT:
                self._saved.append((event.seq + 1, self._before_s - self._undone_s + event.elapsed_s))
            case Kind.BATCH:
                self._row(step).batch = data
            case Kind.UPDATE:
                self._row(step).update = data
            case Kind.REFIT:
                self._row(step).refit = data
            case Kind.STEP:
                row = self._row(step)
                row.seq, row.step_data, row.elapsed_s = event.seq, data, self._before_s + event.elapsed_s
                self.steps.append(row)

    def _row(self, step: int) -> StepRow:
        return self._rows.setdefault(step, StepRow(step))

    def _resume(self, event: Event) -> None:
        """Another attempt begins: what came after its checkpoint never happened."""
        cut, ended = max(1, event.data["from_seq"]), self.attempts[-1]
        self._before_s += ended.seconds
        if cut < event.seq:
            saved_s = max((at for seq, at in self._saved if seq <= cut), default=0.0)
            ended.undone_s = max(0.0, self._before_s - self._undone_s - saved_s)
            self._undone_s += ended.undone_s
        kept = bisect_left(self._rollouts, cut, key=lambda rollout: rollout.seq)
        steps = [row for row in self.steps if row.seq < cut]
        ended.undone_rollouts, ended.undone_steps = len(self._rollouts) - kept, len(self.steps) - len(steps)
        del self._rollouts[kept:]
        self.steps, self._rows = steps, {row.step: row for row in steps}
        self.validations = [item for item in self.validations if item.seq < cut]
        self._saved = [item for item in self._saved if item[0] <= cut]
        self._setting_up = event.data["from_step"] > 0
        self._settings = event.data.get("settings") or self._settings
        self.attempts.append(Attempt(event.data["attempt"], event.data["from_step"],
                                     forced=tuple(event.data.get("forced") or ())))
