"""The trainer keeps the contract of its role, on one rank.

Importing Megatron takes longer than any demand, so two processes are kept over all demands: each trainer's group is
placed in one of them, and leaves it as it found it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from grpo_bench.contract import GroupSpec, Placement
from grpo_bench.engine.clock import RealClock
from grpo_bench.fabric import LocalFabric
from grpo_bench.testing import TrainerSuite
from grpo_bench_trainer_megatron import MegatronTrainerConfig

pytestmark = pytest.mark.real("megatron")


class Kept:
    """Worker processes that outlive the event loops of demands, on a loop of their own in a thread."""

    def __init__(self, folder: Any, python: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._fabric = LocalFabric(folder, RealClock(), logging.getLogger("test"))
        self._python = python
        self._free: list[str] = []
        self._groups = 0

    @asynccontextmanager
    async def fabric(self) -> AsyncIterator[Lent]:
        name = self._free.pop() if self._free else await self.run(self._new())
        try:
            yield Lent(self, name)
        finally:
            self._free.append(name)

    async def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def start(self, spec: GroupSpec, host: str) -> Any:
        self._groups += 1
        return await self._fabric.start_group(replace(spec, name=f"{spec.name}-{self._groups}", colocate=host))

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        await self._fabric.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    async def _new(self) -> str:
        """A process with a trainer in it that never joins any other."""
        self._groups += 1
        plain = {"plugin": MegatronTrainerConfig().model_dump(mode="json"), "loss": {}, "threads": 1, "checkpoint": "",
                 "temperature": 1.0, "local": (0,)}
        await self._fabric.start_group(GroupSpec(
            name=(name := f"process-{self._groups}"), target="grpo_bench_trainer_megatron.worker:make", config=plain,
            placement=Placement(), interpreter=self._python))
        return name


class Lent:
    """A fabric for one trainer, in a process that is kept."""

    def __init__(self, kept: Kept, host: str) -> None:
        self._kept, self._host = kept, host
        self._group: Any = None

    async def start_group(self, spec: GroupSpec) -> Lent:
        self._group = await self._kept.run(self._kept.start(spec, self._host))
        return self

    async def call(self, *arguments: Any, **options: Any) -> Any:
        return await self._kept.run(self._group.call(*arguments, **options))

    async def call_all(self, *arguments: Any, **options: Any) -> Any:
        return await self._kept.run(self._group.call_all(*arguments, **options))

    async def close(self) -> None:
        await self._kept.run(self._group.close())


@pytest.fixture(scope="module")
def kept(tmp_path_factory, environment_python) -> Iterator[Kept]:
    processes = Kept(tmp_path_factory.mktemp("kept"), str(environment_python("megatron")))
    yield processes
    processes.close()


class TestOneRank(TrainerSuite):
    plugin = "megatron"
    fabric = "local"
    timeout_s = 300.0  # the first demand on a process waits for its imports
    kept: Kept

    @pytest.fixture(autouse=True)
    def _processes(self, kept, tmp_path_factory, monkeypatch):
        monkeypatch.setattr(type(self), "kept", kept, raising=False)
        monkeypatch.setattr(type(self), "options", {
            "learning_rate": 1e-3, "cache": str(tmp_path_factory.getbasetemp() / "megatron-cache")})

    @asynccontextmanager
    async def open(self, world, rig):
        world.fabric = cast(Any, self.kept.fabric)
        async with super().open(world, rig) as made:
            yield made
