"""SIGINT and SIGTERM while a run is under way.

The first asks the run to stop: it closes its parts, says so in the journal, and can be resumed. The second ends the
waiting for parts that do not close. The third ends the process where it stands. The handlers are the interpreter's,
not the event loop's: they count from before there is a loop, and while it is busy.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_INTERRUPTED = 130
_LAST_WORDS = b"grpo-bench: ended at once\n"


class Stops:
    """A context inside which signals are counted; ``listen`` says who is told, once for each."""

    def __init__(self) -> None:
        self.count = 0
        self._told = 0
        self._before: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tell: Callable[[], None] | None = None

    def __enter__(self) -> Stops:
        self._before = {number: signal.signal(number, self._received) for number in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` on the running loop for every signal that came or comes."""
        self._loop, self._tell = asyncio.get_running_loop(), tell
        self._pass_on()

    def _received(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            os.write(2, _LAST_WORDS)
            os._exit(_INTERRUPTED)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._pass_on)

    def _pass_on(self) -> None:
        while self._tell is not None and self._told < self.count:
            self._told += 1
            self._tell()
