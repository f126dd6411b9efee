"""Engines that are lost just when a refit is made: none of them samples without its weights, and the run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_bench.contract import LimitSettings, WorkerLost
from grpo_bench.engine import run_virtual
from grpo_bench.engine.recorder import Recorder
from grpo_bench.engine.serving import Serving


class Engines:
    """A generator of two engines. ``during`` has what happens once at the end of a method that answers."""

    def __init__(self) -> None:
        self.lost_ones: set[int] = set()
        self.starting: set[int] = set()
        self.without_weights = {0, 1}
        self.during: dict[str, Callable[[], Awaitable[None]]] = {}

    def addresses(self) -> tuple[int, int]:
        return 0, 1

    async def pause(self, mode: str) -> None:
        await self._answered("pause")

    async def receive(self, transfer: Any) -> None:
        await self._answered("receive")
        self.without_weights.clear()

    async def resume(self) -> None:
        await self._answered("resume")

    async def health(self) -> None:
        await asyncio.sleep(5)
        await self._answered("health")

    async def lost(self) -> list[int]:
        return sorted(self.lost_ones)

    async def restart(self, engine: int) -> None:
        self.lost_ones.discard(engine)
        self.starting.add(engine)
        await asyncio.sleep(20)
        self.starting.discard(engine)
        self.without_weights.add(engine)

    async def _answered(self, method: str) -> None:
        await asyncio.sleep(1)
        if gone := self.lost_ones | self.starting:
            raise WorkerLost(f"engines {gone} are gone")
        if happens := self.during.pop(method, None):
            await happens()


class Trainer:
    def tensors(self) -> tuple[()]:
        return ()

    async def send(self, transfer: Any) -> int:
        return 1


class Pool:
    held = False

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False

    @asynccontextmanager
    async def replacing(self, rank: int) -> AsyncIterator[None]:
        yield


@contextmanager
def anywhere(*_: Any, **__: Any) -> Iterator[None]:
    yield


def serving_of(folder: Path, clock: Any, engines: Engines, pool: Pool) -> Serving:
    profile = SimpleNamespace(limits=LimitSettings(), schedule=SimpleNamespace(in_flight="keep"),
                              refit=SimpleNamespace(chunk_bytes=1024))
    parts: Any = SimpleNamespace(plan=SimpleNamespace(profile=profile, transport="any"), generator=engines,
                                 trainer=Trainer(), attributed=anywhere, between=anywhere)
    events: list[Any] = []
    record: Any = Recorder(clock, events.append)
    return Serving(parts, pool, record, clock, folder, None, transfer_s=600)  # type: ignore[arg-type]


@pytest.mark.parametrize("moment", ["pause", "receive", "resume"])
@pytest.mark.parametrize("until_s", [1, 8], ids=["while_it_is_asked_why", "while_it_is_started"])
def test_an_engine_that_a_rollout_finds_lost_during_a_refit_gets_the_weights_too(tmp_path, moment, until_s):
    async def main(clock: Any) -> None:
        engines, pool, recovering = Engines(), Pool(), []
        serving = serving_of(tmp_path, clock, engines, pool)
        await serving.refit(0)

        async def one_is_lost() -> None:
            engines.lost_ones.add(0)
            recovering.append(asyncio.create_task(serving.recover("it does not answer")))
            await asyncio.sleep(until_s)

        engines.during[moment] = one_is_lost
        async with serving.trainer:
            await serving.pause()
            await serving.refit(1)
        await asyncio.gather(*recovering)
        assert recovering and serving.version == 1
        assert engines.without_weights == set()
        assert not pool.held

    run_virtual(main)


def test_who_waits_for_lost_engines_goes_on_once_they_serve_whoever_has_the_trainer_then(tmp_path):
    """The loop may hold it then, and wait for the very prompt that waits."""
    async def main(clock: Any) -> None:
        engines, pool, finished = Engines(), Pool(), asyncio.Event()
        serving = serving_of(tmp_path, clock, engines, pool)
        await serving.refit(0)

        async def loop() -> None:
            async with serving.trainer:
                await finished.wait()

        async def prompt() -> None:
            await serving.recover("it does not answer")
            finished.set()

        tasks: list[asyncio.Task[None]] = []

        async def others_come() -> None:
            tasks.append(asyncio.create_task(loop()))
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(prompt()))

        engines.lost_ones.add(0)
        engines.during["receive"] = others_come
        await serving.recover("it does not answer")
        await asyncio.gather(*tasks)
        assert len(tasks) == 2 and engines.without_weights == set() and not pool.held
        assert not serving.trainer.locked()

    run_virtual(main)
