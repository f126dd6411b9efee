"""What a run came to, from events alone: the object that ``--json`` prints and that ``run_ended`` carries.

The *tally* is the running state behind it: the engine feeds it as events happen and asks for the ending at the end;
anybody else feeds it the journal. Times are those of all attempts together: from a run's interruption to its resumption
no time counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..contract import Event, Kind, Status
from .ledger import PhaseLedger

KEYS = ("run", "status", "scored", "metric", "value", "target", "steps", "attempts", "time_to_target_s", "wall_s",
        "cpu_s", "weights_sha256", "ledger")


class Tally:
    """The state of a run after the events it was fed."""

    def __init__(self) -> None:
        self.started: Mapping[str, Any] = {}
        self.steps = 0
        self.attempts = 1
        self.forced: tuple[str, ...] = ()
        self.time_to_target_s: float | None = None
        self.ledger = PhaseLedger()
        self._values: list[tuple[int, float]] = []
        self._met_at = 0
        self._ended: Mapping[str, Any] | None = None
        self._before_s = 0.0
        self._before_cpu_s: float | None = 0.0
        self._last_s = 0.0

    @property
    def value(self) -> float | None:
        """The metric at the latest validation that counts."""
        return self._values[-1][1] if self._values else None

    @property
    def scored(self) -> bool:
        """Whether the run can count as a result: its plan says so, and no resumption was forced."""
        return bool(self.started.get("scored")) and not self.forced

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
                self._resumed(event.data)
            case Kind.RUN_ENDED:
                self._ended = event.data
        self._last_s = event.elapsed_s

    def ending(self, status: Status, *, elapsed_s: float, cpu_s: float | None,
               weights_sha256: str | None) -> dict[str, Any]:
        """The ``data`` of the run's last event, at ``elapsed_s`` of the run clock."""
        return {
            "status": status.value, "metric": self.started.get("metric"), "value": self.value,
            "target": self.started.get("target"), "steps": self.steps, "time_to_target_s": self.time_to_target_s,
            "wall_s": self._before_s + elapsed_s, "cpu_s": _sum(self._before_cpu_s, cpu_s),
            "weights_sha256": weights_sha256,
            "ledger": self.ledger.phases(elapsed_s),
        }

    def summary(self) -> dict[str, Any]:
        """The object of ``--json``. A run without an end was cut off: it is ``interrupted``, its CPU time None."""
        ended = self._ended
        if ended is None:
            ended = self.ending(Status.INTERRUPTED, elapsed_s=self._last_s, cpu_s=None, weights_sha256=None)
        known = {**ended, "run": self.started.get("run"), "scored": self.scored, "attempts": self.attempts}
        return {key: known.get(key) for key in KEYS}

    def _resumed(self, data: Mapping[str, Any]) -> None:
        step = data["from_step"]
        self._before_s += self._last_s
        self._before_cpu_s = self._ended["cpu_s"] if self._ended else None
        self._ended, self.steps, self.attempts = None, step, data["attempt"]
        self.forced += tuple(data["forced"])
        self._values = [item for item in self._values if step and item[0] <= step]
        if not step or self._met_at > step:
            self.time_to_target_s = None

    def _validated(self, event: Event) -> None:
        metric = self.started.get("metric")
        if metric is not None:
            self._values.append((event.step or 0, event.data["metrics"][metric]))
        if event.data["target_met"]:
            self._met_at, self.time_to_target_s = event.step or 0, self._before_s + event.elapsed_s


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """The ``--json`` object of a run's events."""
    tally = Tally()
    for event in events:
        tally.add(event)
    return tally.summary()


def _sum(before: float | None, now: float | None) -> float | None:
    """Unknown where one of them is."""
    return None if before is None or now is None else before + now
