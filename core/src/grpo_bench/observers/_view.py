"""What the report shows, folded from a run's events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..contract import Event, Kind, Purpose
from ._text import metric_label
from .journal import canonical
from .ledger import HopLedger
from .summary import Tally

NOTICES = (Kind.ALARM, Kind.STALL, Kind.ERROR, Kind.RESUMED)


@dataclass(slots=True)
class StepRow:
    """One step: what its events say, keyed as there."""

    step: int
    elapsed_s: float = 0.0
    step_data: dict[str, Any] = field(default_factory=dict)
    batch: dict[str, Any] = field(default_factory=dict)
    update: dict[str, Any] = field(default_factory=dict)
    refit: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Validated:
    """One validation, at ``step`` (0: the base)."""

    step: int
    elapsed_s: float
    data: dict[str, Any]


@dataclass(slots=True)
class Rollouts:
    """The rollouts of one purpose: how many had how many turns and sampled tokens, and how they ended."""

    turns: Counter[int] = field(default_factory=Counter)
    tokens: Counter[int] = field(default_factory=Counter)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    messages: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.ends.total()

    def add(self, data: Any) -> None:
        self.turns[data["turns"]] += 1
        self.tokens[data["sampled_tokens"]] += 1
        end = (data["end"], data["cause"] or "")
        self.ends[end] += 1
        if data["message"]:
            self.messages.setdefault(end, data["message"])


class RunView:
    """Steps, validations and rollouts are those of the canonical history; time, summary and notices cover every
    attempt."""

    def __init__(self, events: Iterable[Event]) -> None:
        everything = list(events)
        self.tally = Tally()
        self.hops = HopLedger()
        self.notices: list[Event] = []
        for event in everything:
            self.tally.add(event)
            self.hops.add(event)
            if event.kind in NOTICES:
                self.notices.append(event)
        self.summary = self.tally.summary()
        self.started = self.tally.started
        self.steps: list[StepRow] = []
        self.validations: list[Validated] = []
        self.rollouts = {Purpose.TRAIN: Rollouts(), Purpose.VALIDATION: Rollouts()}
        rows: dict[int, StepRow] = {}
        for event in canonical(everything):
            self._take(event, rows)

    @property
    def metric(self) -> str:
        """The metric shown: the one that ends the run, else pass_k or accuracy."""
        chosen = self.started.get("metric")
        return chosen or ("pass_k" if self.validations and self.validations[0].data["k"] > 1 else "accuracy")

    @property
    def metric_name(self) -> str:
        return metric_label(self.metric, self.validations[0].data["k"] if self.validations else None)

    @property
    def sampled_tokens(self) -> int:
        return sum(tokens * count for rollouts in self.rollouts.values() for tokens, count in rollouts.tokens.items())

    def _take(self, event: Event, rows: dict[int, StepRow]) -> None:
        step, data = event.step or 0, dict(event.data)
        if event.kind == Kind.ROLLOUT:
            self.rollouts[Purpose(data["purpose"])].add(data)
        elif event.kind == Kind.VALIDATION:
            self.validations.append(Validated(step, event.elapsed_s, data))
        elif event.kind in (Kind.BATCH, Kind.UPDATE, Kind.REFIT, Kind.STEP):
            row = rows.setdefault(step, StepRow(step))
            match event.kind:
                case Kind.BATCH:
                    row.batch = data
                case Kind.UPDATE:
                    row.update = data
                case Kind.REFIT:
                    row.refit = data
                case _:
                    row.step_data, row.elapsed_s = data, event.elapsed_s
                    self.steps.append(row)
