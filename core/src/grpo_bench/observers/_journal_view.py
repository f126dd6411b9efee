"""What a view keeps of one journal, the training's or the evaluation's, folded from its events one after the other.

Steps, validations and rollouts are those of the canonical history: a resumption takes back what it made undone. Time
and notices cover every attempt. Of a rollout only its figures are kept, so that long runs fit into memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..contract import Event, Kind, Purpose
from .ledger import HopLedger

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
    """One validation, of the weights after ``step`` (0: the base); ``elapsed_s`` is that of its journal, over all
    attempts."""

    step: int
    seq: int
    elapsed_s: float
    data: dict[str, Any]


@dataclass(slots=True)
class Attempt:
    """One process's part of a journal: how long it took, and what of it a later one made undone."""

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


class JournalView:
    """A journal after the events it was fed. ``saved_by`` is the kind of event after which another attempt goes on."""

    def __init__(self, saved_by: Kind) -> None:
        self.hops = HopLedger()
        self.messages: dict[tuple[str, str], str] = {}
        self.notices: list[Event] = []
        self.steps: list[StepRow] = []
        self.validations: list[Validated] = []
        self.checkpoints: dict[int, Mapping[str, Any]] = {}
        """By step: the weights that were saved to be evaluated."""
        self.attempts = [Attempt(1)]
        self._saved_by = saved_by
        self._rollouts: list[_Rollout] = []
        self._rows: dict[int, StepRow] = {}
        self._saved: list[tuple[int, float]] = [(0, 0.0)]
        self._before_s = self._undone_s = 0.0
        self._setting_up = False

    def add(self, event: Event) -> None:
        self.hops.add(event)
        if event.kind in NOTICES:
            self.notices.append(event)
        if event.kind == Kind.RESUMED:
            self._resume(event)
        elif event.step is not None or not self._setting_up:
            self._setting_up = False
            self._take(event)
        self.attempts[-1].seconds = max(self.attempts[-1].seconds, event.elapsed_s)

    def count(self, found: Mapping[Purpose, Rollouts]) -> None:
        """Add the rollouts to those ``found``."""
        for rollout in self._rollouts:
            side = found[Purpose(rollout.purpose)]
            side.turns[rollout.turns] += 1
            side.tokens[rollout.tokens] += 1
            side.ends[rollout.end] += 1
            if rollout.counted:
                side.counted.update(rollout.counted)
                side.counted_in.update(rollout.counted.keys())

    def _take(self, event: Event) -> None:
        step, data = event.step or 0, dict(event.data)
        if event.kind == self._saved_by:
            self._saved.append((event.seq + 1, self._before_s - self._undone_s + event.elapsed_s))
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
            case Kind.CHECKPOINT if data.get("updated_at"):
                self.checkpoints[step] = data
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
        """Another attempt begins: what came after the one event it goes on from never happened."""
        cut, ended, from_step = max(1, event.data["from_seq"]), self.attempts[-1], event.data["from_step"]
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
        self.checkpoints = {step: data for step, data in self.checkpoints.items() if step <= from_step}
        self._saved = [item for item in self._saved if item[0] <= cut]
        self._setting_up = from_step > 0
        self.attempts.append(Attempt(event.data["attempt"], from_step, forced=tuple(event.data.get("forced") or ())))
