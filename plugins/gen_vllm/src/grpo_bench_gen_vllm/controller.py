"""The engine's half: starts the engines and speaks to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import (
    Address, Floats, GroupSpec, Ids, PluginContext, PluginError, Purpose, RefitError, Sampling, Transfer, WorkerGroup,
)

from .config import VllmGeneratorConfig

_TARGET = "grpo_bench_gen_vllm.worker:make"
_ANSWER_S = 2.0
"""Seconds an engine has to say how it is; one that is busy is not lost."""
_AGREEMENT = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""How far the probes of two engines may be apart. Kernels may sum in another order on each; other weights show more."""


class VllmGenerator:
    """A Generator over a group of engine workers."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._config: VllmGeneratorConfig = context.config
        self._started: WorkerGroup | None = None

    async def start(self) -> None:
        context, config = self._context, self._config
        sampling: Mapping[Purpose, Sampling] = context.shared["sampling"]
        workers = config.workers or context.placement.workers
        plain = {"settings": config.model_dump(), "policy": context.policy, "seed": context.seed,
                 "sampling": tuple(sampling.values()), "temperature": sampling[Purpose.TRAIN].temperature}
        self._started = await context.fabric.start_group(GroupSpec(
            name="generator", target=_TARGET, config=plain, placement=replace(context.placement, workers=workers),
            interpreter=context.interpreter, start_deadline_s=context.shared["limits"].start_s))

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
        bound = _AGREEMENT[self._config.dtype]
        for rank, other in enumerate(others, 1):
            apart = max((float(np.abs(a - b).max(initial=0.0)) for a, b in zip(first, other, strict=True)), default=0.0)
            if not apart <= bound:
                raise RefitError(f"engines 0 and {rank} differ by {apart:.3g} in the probe's log-probabilities, more "
                                 f"than {bound:g}", hint="their weights are not the same")
        return first

    async def health(self) -> Mapping[str, Any]:
        return {"engines": await self._engines.call_all("health")}

    async def lost(self) -> Sequence[int]:
        """The engines whose worker process, or a process under it, has ended."""
        engines = self._engines
        answers = await asyncio.gather(*(engines.call(rank, "health", deadline_s=_ANSWER_S) for rank in
                                         range(engines.size)), return_exceptions=True)
        return [rank for rank, answer in enumerate(answers) if isinstance(answer, PluginError)]

    async def restart(self, engine: int) -> None:
        await self._engines.restart(engine)

    async def close(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            await asyncio.shield(started.close())


def make(context: PluginContext) -> VllmGenerator:
    """The descriptor's factory."""
    return VllmGenerator(context)
