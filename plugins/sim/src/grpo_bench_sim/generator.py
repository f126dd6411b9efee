"""The generator: engines on which a turn takes the longer the more requests they serve.

A turn is work: so many seconds at the load of the calibration. How fast it gets done is decided when it begins. Under a
pause that keeps requests, work stands still; a draining one waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import Address, Floats, GroupSpec, PluginContext, Remote, Transfer, WorkerContext
from grpo_bench.contract.values import Ids

from .config import PartConfig

GROUP = "generator"


class ModelledEngine:
    """One engine, in a worker."""

    def __init__(self, config: PartConfig) -> None:
        self._config = config
        self._version = -1
        self._busy = 0
        self._open = asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stood = 0.0
        self._stands_since: float | None = None

    async def turn(self, seconds: float) -> tuple[int, int]:
        """Do work; the weight versions under which it began and ended."""
        await self._open.wait()
        self._busy += 1
        self._idle.clear()
        began = self._version
        try:
            await self._work(seconds * self._slowdown())
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()
        return began, self._version

    def version(self) -> int:
        return self._version

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        self._open.clear()
        if mode == "drain":
            await self._idle.wait()
        else:
            self._moving.clear()
            self._stands_since = asyncio.get_running_loop().time()

    def receive(self, transfer: Transfer) -> None:
        self._version = transfer.version

    def resume(self) -> None:
        if self._stands_since is not None:
            self._stood += asyncio.get_running_loop().time() - self._stands_since
            self._stands_since = None
        self._moving.set()
        self._open.set()

    async def _work(self, seconds: float) -> None:
        """Wait so long, standing still left out."""
        now = asyncio.get_running_loop().time
        end = now() + seconds
        counted = self._stood
        while (left := end + self._stood - counted - now()) > 0:
            await asyncio.sleep(left)
            await self._moving.wait()

    def _slowdown(self) -> float:
        """How much longer a token takes than at calibration: an engine decodes for all its requests at once, and each
        adds to the time of a step."""
        model, half = self._config.model, self._config.model.assumptions.load_requests
        return (1 + self._busy / self._config.engines / half) / (1 + model.load / half) / self._config.engine_speed


class ModelledGenerator:
    """The contract's Generator."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._config: PartConfig = context.config
        self._group: Any = None

    async def start(self) -> None:
        context = self._context
        self._group = await context.fabric.start_group(GroupSpec(
            GROUP, "grpo_bench_sim.generator:make_engine", self._config.model_dump(mode="json"),
            replace(context.placement, nodes=(), gpus=0)))
        await asyncio.sleep(0)

    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._group.address(rank) for rank in range(self._group.size))

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        await self._group.call_all("pause", mode)

    async def receive(self, transfer: Transfer) -> None:
        await self._group.call_all("receive", transfer)

    async def resume(self) -> None:
        await self._group.call_all("resume")

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        return [np.zeros(len(sequence), np.float32) for sequence in sequences]

    async def health(self) -> Mapping[str, Any]:
        return {}

    async def lost(self) -> Sequence[int]:
        return []

    async def restart(self, engine: int) -> None:
        raise RuntimeError("a modelled engine is never lost")

    async def close(self) -> None:
        if self._group is not None:
            await self._group.close()
            self._group = None


def create(context: PluginContext) -> ModelledGenerator:
    """The factory."""
    return ModelledGenerator(context)


def make_engine(context: WorkerContext) -> ModelledEngine:
    """The worker target."""
    return ModelledEngine(PartConfig.model_validate(context.config))


def make_client(remotes: Sequence[Remote]) -> Sequence[Remote]:
    """The client factory: the policy of a simulation calls the engines itself."""
    return remotes
