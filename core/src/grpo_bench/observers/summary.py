"""What a run came to, from events alone: the object that ``--json`` prints and that ``run_ended`` carries.

The *tally* is the running state behind it: the engine feeds it as events happen and asks for the ending at the end;
anybody else feeds it the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..contract import Event, Kind, Status
from .ledger import PhaseLedger

KEYS = ("run", "status", "metric", "value", "target", "steps", "time_to_target_s", "wall_s", "cpu_s", "weights_sha256",
        "ledger")


class Tally:
    """The state of a run after the events it was fed."""

    def __init__(self) -> None:
        self.started: Mapping[str, Any] = {}
        self.steps = 0
        self.value: float | None = None
        self.time_to_target_s: float | None = None
        self.ledger = PhaseLedger()
        self._ended: Mapping[str, Any] | None = None
        self._before_s = 0.0
        self._last_s = 0.0

    def add(self, event: Event) -> None:
        self.ledger.add(event)
        match event.kind:
            case Kind.RUN_STARTED:
                self.started = event.data
            case Kind.STEP:
                self.steps = event.step or 0
            case Kind.VALIDATION:
                self._validated(event)
            case Kind.RESUMED:
                self.steps, self._ended = event.data["from_step"], None
                self._before_s += self._last_s
            case Kind.RUN_ENDED:
                self._ended = event.data
        self._last_s = event.elapsed_s

    def ending(self, status: Status, *, elapsed_s: float, cpu_s: float | None,
               weights_sha256: str | None) -> dict[str, Any]:
        """The ``data`` of the run's last event, at ``elapsed_s`` of the run clock."""
        return {
            "status": status.value, "metric": self.started.get("metric"), "value": self.value,
            "target": self.started.get("target"), "steps": self.steps, "time_to_target_s": self.time_to_target_s,
            "wall_s": self._before_s + elapsed_s, "cpu_s": cpu_s, "weights_sha256": weights_sha256,
            "ledger": self.ledger.phases(elapsed_s),
        }

    def summary(self) -> dict[str, Any]:
        """The object of ``--json``. A run without an end was cut off: it is ``interrupted``, its CPU time None."""
        ended = self._ended
        if ended is None:
            ended = self.ending(Status.INTERRUPTED, elapsed_s=self._last_s, cpu_s=None, weights_sha256=None)
        return {"run": self.started.get("run"), **{key: ended.get(key) for key in KEYS[1:]}}

    def _validated(self, event: Event) -> None:
        metric = self.started.get("metric")
        if metric is not None:
            self.value = event.data["metrics"][metric]
        if event.data.get("target_met") and self.time_to_target_s is None:
            self.time_to_target_s = self._before_s + event.elapsed_s


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """The ``--json`` object of a run's events."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.summary()
