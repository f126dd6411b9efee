"""How far something is, for whoever waits. No run is under way, so time here is the machine's."""

from __future__ import annotations

import sys
import time

QUIET_S = 10.0
"""Seconds between two lines where stderr is no terminal."""


def now() -> float:
    """Seconds since an arbitrary point."""
    return time.monotonic()  # noqa: TID251


class Progress:
    """One line on stderr that the next one replaces; where that is no terminal, a line now and then."""

    def __init__(self, width: int) -> None:
        self._terminal, self._width = sys.stderr.isatty(), width
        self._shown_at = now()

    def say(self, line: str) -> None:
        if self._terminal:
            print(f"\r\033[K{line[:self._width - 1]}", end="", file=sys.stderr, flush=True)
        elif now() - self._shown_at > QUIET_S:
            print(f"grpo-bench: {line}", file=sys.stderr, flush=True)
            self._shown_at = now()

    def clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
