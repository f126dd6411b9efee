"""SIGINT, SIGTERM and SIGUSR1 while a run is under way.

The first SIGINT or SIGTERM asks the run to stop: it closes its parts, says so in the journal, and can be resumed. The
second ends the waiting for parts that do not close. The third ends the process where it stands. SIGUSR1, as a scheduler
sends it some time before it kills, asks the run to end after the step under way; it counts once, and not among the
others. The handlers are the interpreter's, not the event loop's: they count from before there is a loop, and while it
is busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
_INTERRUPTED = 130
_LAST_WORDS = b"grpo-bench: ended at once\n"


class Stops:
    """A context inside which signals are counted; ``listen`` says who is told, once for each. ``count`` is that of
    SIGINT and SIGTERM, ``ending`` whether SIGUSR1 came."""

    def __init__(self) -> None:
        self.count = 0
        self.ending = False
        self._told = 0
        self._told_to_end = False
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], None] | None = None
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> Stops:
        self._before = {number: signal.signal(number, self._received) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def came(self) -> bool:
        """Whether nothing new should begin."""
        return self.ending or self.count > 0

    def listen(self, stop: Callable[[], None], end: Callable[[], None]) -> None:
        """On the running loop, call ``stop`` for every SIGINT and SIGTERM that came or comes, and ``end`` for the first
        SIGUSR1."""
        self._loop, self._stop, self._end = asyncio.get_running_loop(), stop, end
        self._pass_on()

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.ending = True
        else:
            self.count += 1
        if self.count > 2:
            os.write(2, _LAST_WORDS)
            os._exit(_INTERRUPTED)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        if self._end is not None and self.ending and not self._told_to_end:
            self._told_to_end = True
            self._end()
        while self._stop is not None and self._told < self.count:
            self._told += 1
            self._stop()
