"""The engine's half: starts the engines and speaks to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import (
    Address, Floats, GroupSpec, Ids, LimitSettings, PluginContext, PluginError, Purpose, RefitError, Sampling, Transfer,
    WorkerGroup,
)

from .config import TorchGeneratorConfig

_TARGET = "grpo_bench_gen_torch.worker:make"
_AGREEMENT = 1e-5
_ANSWER_S = 2.0
"""How long an engine may be busy with a batch step before it answers. One that is longer is not lost: it has its own
limits."""


class TorchGenerator:
    """A Generator over a group of engine workers."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._config: TorchGeneratorConfig = context.config
        self._started: WorkerGroup | None = None

    async def start(self) -> None:
        context, config = self._context, self._config
        sampling: Mapping[Purpose, Sampling] = context.shared["sampling"]
        limits: LimitSettings = context.shared["limits"]
        workers = config.workers or context.placement.workers
        plain = {**config.model_dump(), "checkpoint": str(context.policy.checkpoint),
                 "capacity": context.policy.max_context, "threads": context.placement.threads,
                 "sampling": tuple(sampling.values()), "temperature": sampling[Purpose.TRAIN].temperature,
                 "deterministic": context.deterministic}
        self._started = await context.fabric.start_group(GroupSpec(
            name="generator", target=_TARGET, config=plain, placement=replace(context.placement, workers=workers),
            start_deadline_s=limits.start_s))

    @property
    def _engines(self) -> WorkerGroup:
        if self._started is None:
            raise PluginError("the generator has not been started")
        return self._started

    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._engines.address(rank) for rank in range(self._engines.size))

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        await self._engines.call_all("pause", mode)

    async def receive(self, transfer: Transfer) -> None:
        await self._engines.call_all("receive", transfer, deadline_s=transfer.deadline_s)

    async def resume(self) -> None:
        await self._engines.call_all("resume")

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Asked of every engine; RefitError where they disagree."""
        first, *others = await self._engines.call_all("probe", list(sequences))
        for rank, other in enumerate(others, 1):
            apart = max((float(np.abs(a - b).max(initial=0.0)) for a, b in zip(first, other, strict=True)), default=0.0)
            if not apart <= _AGREEMENT:
                raise RefitError(f"engines 0 and {rank} differ by {apart:.3g} in the probe's log-probabilities",
                                 hint="their weights are not the same")
        return first

    async def health(self) -> Mapping[str, Any]:
        return {"engines": await self._engines.call_all("health")}

    async def lost(self) -> Sequence[int]:
        """Those whose process ended, and those whose batch steps failed."""
        engines = range(self._engines.size)
        answers = await asyncio.gather(*(self._engines.call(rank, "health", deadline_s=_ANSWER_S) for rank in engines),
                                       return_exceptions=True)
        return [rank for rank, answer in enumerate(answers) if isinstance(answer, PluginError)]

    async def restart(self, engine: int) -> None:
        await self._engines.restart(engine)

    async def close(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            await asyncio.shield(started.close())


def make(context: PluginContext) -> TorchGenerator:
    """The descriptor's factory."""
    return TorchGenerator(context)
