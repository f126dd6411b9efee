"""The engine's half: starts the engines and speaks to all of them.

Where engines span hosts there are two groups of workers: one of their first hosts, which are the engines to everybody
else, and one of their followers (:mod:`.follower`), which the first hosts lead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import (
    Address, Floats, GroupSpec, Ids, Placement, PluginContext, PluginError, Purpose, RefitError, Sampling, Transfer,
    WorkerGroup,
)

from .config import VllmGeneratorConfig
from .hosts import Spread

_TARGET, _FOLLOWER = "grpo_bench_gen_vllm.worker:make", "grpo_bench_gen_vllm.follower:make"
_ANSWER_S = 2.0
"""Seconds an engine has to say how it is; one that is busy is not lost."""
_AGREEMENT = {"float32": 1e-4, "bfloat16": 0.25, "float16": 0.05}
"""How far the probes of two engines may be apart. Kernels may sum in another order on each; other weights show more."""


class VllmGenerator:
    """A Generator over a group of engine workers."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._config: VllmGeneratorConfig = context.config
        self._spread = Spread.of(context.placement, self._config.workers or context.placement.workers)
        self._started: WorkerGroup | None = None
        self._followers: WorkerGroup | None = None

    async def start(self) -> None:
        context, spread = self._context, self._spread
        sampling: Mapping[Purpose, Sampling] = context.shared["sampling"]
        plain = {"settings": self._config.model_dump(), "policy": context.policy, "seed": context.seed,
                 "sampling": tuple(sampling.values()), "temperature": sampling[Purpose.TRAIN].temperature}
        try:
            if spread.hosts > 1:
                self._followers = await self._group("generator-hosts", _FOLLOWER, plain, spread.further())
            followers = tuple(self._followers_of(engine) for engine in range(spread.engines))
            self._started = await self._group("generator", _TARGET, {**plain, "followers": followers}, spread.first())
        except BaseException:
            await self.close()
            raise

    async def _group(self, name: str, target: str, config: Mapping[str, Any], placement: Placement) -> WorkerGroup:
        context = self._context
        return await context.fabric.start_group(GroupSpec(
            name=name, target=target, config=config, placement=placement, interpreter=context.interpreter,
            start_deadline_s=context.shared["limits"].start_s))

    def _followers_of(self, engine: int) -> tuple[Address, ...]:
        group = self._followers
        return () if group is None else tuple(group.address(rank) for rank in self._spread.followers(engine))

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
        found: dict[str, Any] = {"engines": await self._engines.call_all("health")}
        return found if self._followers is None else {**found, "further": await self._followers.call_all("health")}

    async def lost(self) -> Sequence[int]:
        """The engines of which a worker process, or a process under it, has ended, on whichever host."""
        engines = {rank for rank, answer in enumerate(await _how_all_are(self._engines)) if _is_lost(answer)}
        if self._followers is not None:
            engines |= {self._spread.engine_of(rank) for rank, answer in enumerate(await _how_all_are(self._followers))
                        if _is_lost(answer)}
        return sorted(engines)

    async def restart(self, engine: int) -> None:
        if self._followers is not None:
            await asyncio.gather(*map(self._followers.restart, self._spread.followers(engine)))
        await self._engines.restart(engine)

    async def close(self) -> None:
        for group in (self._started, self._followers):
            if group is not None:
                await asyncio.shield(group.close())
        self._started = self._followers = None


async def _how_all_are(group: WorkerGroup) -> list[Any]:
    """What each worker says of itself, or the error instead."""
    return await asyncio.gather(*(group.call(rank, "health", deadline_s=_ANSWER_S) for rank in range(group.size)),
                                return_exceptions=True)


def _is_lost(answer: Any) -> bool:
    return isinstance(answer, PluginError)


def make(context: PluginContext) -> VllmGenerator:
    """The descriptor's factory."""
    return VllmGenerator(context)
