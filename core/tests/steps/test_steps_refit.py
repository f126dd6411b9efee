"""A refit ends on both sides whatever one of them does, and weights that did not arrive show."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import RefitError, RefitStats, Transfer
from grpo_bench.steps import Probe, probe_batch, refit

PROBES = [np.arange(4, dtype=np.int32), np.arange(6, dtype=np.int32)]


class LoopClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now_utc(self) -> str:
        return "2030-01-01T00:00:00.000000+00:00"


class Side:
    """Trainer and generator in one; each method does what it is given."""

    def __init__(self, send: Callable[[], Any], receive: Callable[[], Any], shift: float = 0.0) -> None:
        self._send, self._receive, self._shift = send, receive, shift
        self.cancelled: list[str] = []

    async def send(self, transfer: Transfer) -> int:
        return await self._run("send", self._send)

    async def receive(self, transfer: Transfer) -> None:
        await self._run("receive", self._receive)

    async def log_probabilities(self, batch: Any, weights: str) -> np.ndarray:
        assert batch.token_mask.sum() == len(batch.ids) - batch.rows
        return -batch.ids.astype(np.float32)

    async def probe(self, sequences: Any) -> list[np.ndarray]:
        return [-sequence.astype(np.float32) + self._shift for sequence in sequences]

    async def _run(self, name: str, work: Callable[[], Any]) -> Any:
        try:
            return await work()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise


async def fine() -> int:
    return 10


async def broken() -> int:
    raise ConnectionError("the cable is out")


async def stuck() -> int:
    return await asyncio.Event().wait() or 0


def run(side: Any, bound: float | None = 1e-4, deadline_s: float = 5.0) -> RefitStats:
    transfer = Transfer(3, "test", "", (), 1, deadline_s)
    return asyncio.run(refit(side, side, transfer, Probe(bound, sampled=PROBES), LoopClock()))


def test_a_refit_says_what_it_moved() -> None:
    stats = run(Side(fine, fine))
    assert (stats.version, stats.bytes, stats.probe_difference) == (3, 10, 0.0)


@pytest.mark.parametrize(("send", "receive", "cancelled"), [(broken, stuck, "receive"), (stuck, broken, "send")])
def test_one_failing_side_releases_the_other(send: Any, receive: Any, cancelled: str) -> None:
    side = Side(send, receive)
    with pytest.raises(RefitError, match=r"ConnectionError: the cable is out") as caught:
        run(side)
    assert side.cancelled == [cancelled]
    assert caught.value.boundary.role == ("trainer" if send is broken else "generator")
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_both_failures_are_named() -> None:
    with pytest.raises(RefitError, match=r"trainer: ConnectionError.*generator: ConnectionError"):
        run(Side(broken, broken))


def test_a_deadline_ends_both_sides() -> None:
    side = Side(fine, stuck)
    with pytest.raises(RefitError, match=r"trainer: done; generator: not finished in time"):
        run(side, deadline_s=0.01)
    assert side.cancelled == ["receive"]


@pytest.mark.parametrize("shift", [0.01, float("nan")])
def test_weights_that_did_not_arrive_show(shift: float) -> None:
    with pytest.raises(RefitError, match="differ from the trainer's"):
        run(Side(fine, fine, shift))
    if shift == shift:
        assert run(Side(fine, fine, shift), bound=None).probe_difference == pytest.approx(shift, rel=1e-3)


def test_sides_that_compute_different_things_are_not_compared() -> None:
    side: Any = Side(fine, fine, 1.0)
    stats = asyncio.run(refit(side, side, Transfer(3, "test", "", (), 1, 5.0), None, LoopClock()))
    assert (stats.bytes, stats.probe_difference) == (10, None)


def test_a_generator_that_fails_the_probe_leaves_no_trainer_at_work() -> None:
    ended: list[str] = []

    class Broken(Side):
        async def log_probabilities(self, batch: Any, weights: str) -> np.ndarray:
            await asyncio.sleep(0.02)
            ended.append("trainer")
            return await super().log_probabilities(batch, weights)

        async def probe(self, sequences: Any) -> list[np.ndarray]:
            raise ConnectionError("the cable is out")

    with pytest.raises(RefitError, match="the generator does not answer the probe: ConnectionError: the cable is out"):
        run(Broken(fine, fine))
    assert ended == ["trainer"]


def test_cancelling_the_refit_cancels_both_sides() -> None:
    side: Any = Side(stuck, stuck)

    async def main() -> None:
        task = asyncio.create_task(refit(side, side, Transfer(3, "test", "", (), 1, 9.0), Probe(None), LoopClock()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert sorted(side.cancelled) == ["receive", "send"]


def test_a_probe_batch_is_ragged() -> None:
    batch = probe_batch(PROBES)
    assert batch.offsets.tolist() == [0, 4, 10]
    assert batch.token_mask.tolist() == [False, True, True, True, False, True, True, True, True, True]
