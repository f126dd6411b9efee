"""What the report shows of a run: its training and, where that has begun, its deferred evaluation, each folded from the
events of its journal. Their clocks and their processes are apart, so their times never mix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..contract import Event, Kind, Metric, Purpose
from ..contract.picture import Picture
from ._journal_view import Attempt, JournalView, Rollouts, StepRow, Validated
from ._text import metric_label
from .attribution import Failures, PluginTime, plugin_times
from .ledger import HopLedger, Straggler
from .summary import Tally


class Notice(NamedTuple):
    """An alarm, a stall or an error, and whether it came during the evaluation."""

    event: Event
    evaluating: bool


class RunView:
    """A run after the events it was fed."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.tally = Tally()
        self.training = JournalView(saved_by=Kind.CHECKPOINT)
        self.evaluation: JournalView | None = None
        self.failures = Failures()
        self.going_on = False
        """Whether a process is still at it; events cannot tell."""
        self._settings: Mapping[str, Any] | None = None
        self._layout: Mapping[str, Any] | None = None
        for event in events:
            self.add(event)

    def add(self, event: Event) -> None:
        if event.kind == Kind.EVALUATION_STARTED:
            self.evaluation = JournalView(saved_by=Kind.VALIDATION)
        if event.kind in (Kind.EVALUATION_STARTED, Kind.RESUMED):
            self._settings = event.data.get("settings") or self._settings
        if event.kind in (Kind.RUN_STARTED, Kind.RESUMED):
            self._layout = event.data.get("layout") or self._layout
        for part in (self.tally, self.failures, self.evaluation or self.training):
            part.add(event)

    @property
    def summary(self) -> dict[str, Any]:
        return self.tally.summary()

    @property
    def modelled(self) -> str:
        """Where the times of a simulation are from; empty for what ran."""
        return self.tally.modelled

    @property
    def started(self) -> Mapping[str, Any]:
        return self.tally.started

    @property
    def settings(self) -> Mapping[str, Any]:
        """The resolved profile of the latest attempt; empty where the journal does not say."""
        return self._settings or self.started.get("settings") or {}

    @property
    def picture(self) -> Picture:
        """Who sat where in the latest attempt, as far as the journal names hosts."""
        return Picture.of(self._layout) if self._layout else Picture()

    @property
    def hops(self) -> HopLedger:
        """Of the training's rollouts, validations between its steps included."""
        return self.training.hops

    @property
    def stragglers(self) -> list[Straggler]:
        """The longest rollouts of both, longest first."""
        return sorted((item for part in self._parts for item in part.hops.stragglers()), key=lambda item: -item.seconds)

    @property
    def steps(self) -> list[StepRow]:
        return self.training.steps

    @property
    def attempts(self) -> list[Attempt]:
        """Those of the training."""
        return self.training.attempts

    @property
    def validations(self) -> list[Validated]:
        return [item for part in self._parts for item in part.validations]

    @property
    def notices(self) -> list[Notice]:
        return [Notice(event, part is self.evaluation) for part in self._parts for event in part.notices]

    @property
    def messages(self) -> dict[tuple[str, str], str]:
        """How a rollout ended, and what the first of these said."""
        return {end: text for part in reversed(self._parts) for end, text in part.messages.items()}

    @property
    def rollouts(self) -> dict[Purpose, Rollouts]:
        found = {purpose: Rollouts() for purpose in Purpose}
        for part in self._parts:
            part.count(found)
        return found

    @property
    def plugins(self) -> list[PluginTime]:
        summary, hops = self.summary, {}
        for name, hop in (item for part in self._parts for item in part.hops.in_order()):
            hops[name] = hops.get(name, 0.0) + hop.total
        evaluation = summary["evaluation"]["ledger"] if summary["evaluation"] else {}
        return plugin_times(self.started.get("parts", {}), summary["ledger"], evaluation, hops, self.failures)

    @property
    def metric(self) -> str:
        """The metric that ends the run; where none does, the usual one, accuracy while k is not known."""
        return self.started.get("metric") or Metric.usual(self.k or 1)

    @property
    def metric_name(self) -> str:
        return metric_label(self.metric, self.k)

    @property
    def k(self) -> int | None:
        """Rollouts of a validated task; None where that is not known yet."""
        return next((item.data["k"] for item in self.validations), self.tally.evaluated.get("k"))

    @property
    def _parts(self) -> list[JournalView]:
        return [self.training, *([self.evaluation] if self.evaluation is not None else [])]
