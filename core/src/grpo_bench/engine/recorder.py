"""Turns what happens into events, and knows which phase the engine is in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..contract import Event, Kind, Phase


class Recorder:
    """Numbers events from ``first_seq`` on, stamps them and hands them on. ``elapsed_s`` counts from the start of the
    process."""

    def __init__(self, clock: Any, deliver: Callable[[Event], None], *, first_seq: int = 0) -> None:
        self._clock = clock
        self._deliver = deliver
        self._seq = first_seq
        self._origin = clock.monotonic() - clock.since_process_start()
        self.phase_now = Phase.STARTUP
        self.step: int | None = None
        self.moved_at = clock.monotonic()

    @property
    def next_seq(self) -> int:
        return self._seq

    def elapsed(self) -> float:
        """Seconds since the process began."""
        return self._clock.monotonic() - self._origin

    def emit(self, kind: Kind, *, progress: bool = True, at_s: float | None = None, **data: Any) -> Event:
        """Record one event of the current step. ``progress`` False does not count as movement for the watchdog."""
        if progress:
            self.moved_at = self._clock.monotonic()
        elapsed = self.elapsed() if at_s is None else at_s
        event = Event(self._seq, self._clock.now_utc(), elapsed, kind.value, self.step, data)
        self._seq += 1
        self._deliver(event)
        return event

    def enter(self, phase: Phase) -> None:
        """The critical path goes over to ``phase``."""
        self.phase_now = phase
        self.emit(Kind.PHASE, phase=phase.value)

    def alarm(self, name: str, message: str, **facts: Any) -> None:
        self.emit(Kind.ALARM, name=name, message=message, **facts)
