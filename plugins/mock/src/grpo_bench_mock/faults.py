"""Faults at named points.

A role calls ``at`` on entering a point. A fault that strikes there acts at once where it can (raise, hang, late, die,
break); where it concerns the result (nan, wrong) its kind is returned and the caller spoils the result.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from grpo_bench.contract.values import Floats

from .chance import uniform
from .config import Fault

Spoilt = Literal["nan", "wrong"] | None


class MockFault(RuntimeError):
    """Raised on demand."""


class MockBreakdown(MockFault):
    """What raises it is broken from then on."""


class Faults:
    """The faults of one role object, with its counts of calls."""

    def __init__(self, role: str, faults: Sequence[Fault]) -> None:
        self._role = role
        self._faults = faults
        self._calls: Counter[str] = Counter()

    async def at(self, point: str, *, step: int | None = None, task: str | None = None,
                 about: str = "") -> Spoilt:
        """Enter ``point``; ``about`` names the call for faults that hit a share of them."""
        self._calls[point] += 1
        for fault in self._faults:
            if fault.at == point and self._strikes(fault, step, task, about):
                if fault.kind == "nan" or fault.kind == "wrong":
                    return fault.kind
                await self._act(fault)
        return None

    def _strikes(self, fault: Fault, step: int | None, task: str | None, about: str) -> bool:
        count = self._calls[fault.at]
        return (fault.step in (None, step) and fault.task in (None, task) and fault.call in (None, count)
                and (fault.share == 1 or uniform("fault", self._role, fault.at, about or count) < fault.share))

    async def _act(self, fault: Fault) -> None:
        if fault.kind == "raise":
            raise MockFault(f"mock {self._role} told to fail at {fault.at}")
        if fault.kind == "break":
            raise MockBreakdown(f"mock {self._role} told to break at {fault.at}")
        if fault.kind == "die":
            os._exit(70)
        if fault.kind == "hang":
            await asyncio.Event().wait()
        await asyncio.sleep(fault.seconds)


def spoil(values: Floats, fault: Spoilt) -> Floats:
    """Log-probabilities as a fault leaves them."""
    return values if fault is None else np.full_like(values, np.nan) if fault == "nan" else values - 1


async def spend(seconds: float) -> None:
    """Take time, if there is any to take."""
    if seconds:
        await asyncio.sleep(seconds)
