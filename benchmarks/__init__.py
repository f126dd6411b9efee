"""Speed, as ratios within one run: each benchmark times a thing of ours beside the least that could do the same, so
that figures of different machines can be compared. Every module here has ``run()``, which yields results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Result:
    """What was timed, in seconds, beside what it is compared with."""

    what: str
    seconds: float
    beside: str
    beside_seconds: float

    def __str__(self) -> str:
        times = self.seconds / self.beside_seconds
        ratio = f"{times:.2f}" if times >= 0.1 else f"{times:.1g}"
        beside = f"{self.beside} ({_readable(self.beside_seconds)})"
        return f"{self.what:<36}{_readable(self.seconds):>10}{ratio:>9} x {beside}"


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median wall time of ``work``, after one call that does not count."""
    work()
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return median(taken)


def _readable(value: float) -> str:
    return next((f"{value * scale:.3g} {unit}" for scale, unit in ((1, "s"), (1e3, "ms")) if value * scale >= 1),
                f"{value * 1e6:.3g} us")
