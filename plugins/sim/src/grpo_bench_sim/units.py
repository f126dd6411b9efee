"""What times are told in: minutes or, where a training is over within ten minutes, seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from .reading import RunTimes

_SHORT_S = 600.0


@dataclass(frozen=True, slots=True)
class Unit:
    """``word`` is what many of them are called in full, ``digits`` how many a column of times has after the point."""

    name: str
    word: str
    seconds: float
    digits: int

    @property
    def least(self) -> float:
        """Minutes below which nothing shows."""
        return 0.005 * self.seconds / 60

    def of(self, minutes: float) -> float:
        """How many of them so many minutes are."""
        return minutes * 60 / self.seconds

    def shown(self, minutes: float) -> str:
        """So many minutes with the digits that matter."""
        return shown(self.of(minutes))


MINUTES, SECONDS = Unit("min", "minutes", 60.0, 1), Unit("s", "seconds", 1.0, 2)


def unit_of(runs: Iterable[RunTimes]) -> Unit:
    """That in which replicas are told, and all that is compared with them."""
    return SECONDS if median(run.wall for run in runs) < _SHORT_S else MINUTES


def shown(value: float) -> str:
    """With the digits that matter."""
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"
