"""Both halves of the generator that do not sample: the engine's, which starts the workers and passes weights to them,
and the rollout workers', which passes requests on."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from grpo_bench.contract import (
    Address, Floats, GroupSpec, Ids, PluginContext, Remote, Sample, Sampling, Transfer, WorkerGroup, WorkerLost,
)


class Generator:
    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._group: WorkerGroup | None = None

    async def start(self) -> None:
        """Bring the engines up; they have no weights before the first refit."""
        context = self._context
        config = {"checkpoint": str(context.policy.checkpoint), "sampling": list(context.shared["sampling"].values())}
        self._group = await context.fabric.start_group(GroupSpec(
            name="generator", target="grpo_numpy_qwen3.engine:make", config=config,
            placement=replace(context.placement, workers=context.config.workers or context.placement.workers)))

    def addresses(self) -> tuple[Address, ...]:
        """One per engine; clients in other processes are made from them."""
        return tuple(self._engines.address(rank) for rank in range(self._engines.size))

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        """Admit no request; ``drain`` waits until none runs, ``keep`` stops them where they are."""
        await self._engines.call_all("pause", mode)

    async def receive(self, transfer: Transfer) -> None:
        """Take the weights on every engine, set the version, reset every cache; raise if any of it fails."""
        await self._engines.call_all("receive", transfer, deadline_s=transfer.deadline_s)

    async def resume(self) -> None:
        """Admit requests again; kept ones go on under the new weights."""
        await self._engines.call_all("resume")

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        """Log-probability [T] of each token of each sequence, 0 for the first, at the training temperature, by the
        computation that sampling uses, from an empty cache."""
        return await self._engines.call(0, "probe", list(sequences))

    async def health(self) -> Mapping[str, Any]:
        """Facts for a report on what hangs; must answer while requests run."""
        return {"engines": await self._engines.call_all("health")}

    async def lost(self) -> Sequence[int]:
        """Engines that ended; the core has them restarted and refits all before anything is sampled there."""
        answers = await asyncio.gather(*(self._engines.call(rank, "health") for rank in range(self._engines.size)),
                                       return_exceptions=True)
        return [rank for rank, answer in enumerate(answers) if isinstance(answer, WorkerLost)]

    async def restart(self, engine: int) -> None:
        """Replace one engine; until the next refit it has no weights and refuses requests."""
        await self._engines.restart(engine)

    async def close(self) -> None:
        """End everything that was started; closing twice is fine."""
        group, self._group = self._group, None
        if group is not None:
            await group.close()

    @property
    def _engines(self) -> WorkerGroup:
        if self._group is None:
            raise RuntimeError("the generator is not started")
        return self._group


class Client:
    """Requests of one affinity share prefixes, so they go to one engine."""

    def __init__(self, engines: Sequence[Remote]) -> None:
        self._engines = engines
        self._asked: dict[str, Remote] = {}

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        """Sample one reply to ``ids``. Its tokens depend on weights, ``ids``, ``sampling`` and ``stream`` alone."""
        engine = self._engines[zlib.crc32(affinity.encode()) % len(self._engines)]
        self._asked[request_id] = engine
        try:
            return await engine.call("generate", request_id, ids, sampling, stream, deadline_s=deadline_s)
        finally:
            del self._asked[request_id]

    async def abort(self, request_id: str) -> None:
        """Stop a request; unknown ids are fine."""
        if (engine := self._asked.get(request_id)) is not None:
            await engine.call("abort", request_id)

    async def release(self, rollout_id: str) -> None:
        """What was kept for the rollout's next turn may go: nothing is here."""


def make(context: PluginContext) -> Generator:
    """The descriptor's factory."""
    return Generator(context)


def make_client(engines: Sequence[Remote]) -> Client:
    """The descriptor's client factory, called inside each rollout worker."""
    return Client(engines)
