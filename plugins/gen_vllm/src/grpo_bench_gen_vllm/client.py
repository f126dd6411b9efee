"""The rollout worker's half: requests to the engines.

A rollout stays with one engine, whose cache holds what its next turn extends. A new rollout goes where its affinity
ranks the engines: the first in that order that has no more than its share of this client's open rollouts, and a little.
Every client ranks alike, so a group's rollouts meet at one engine wherever they run, as long as the load is even. An
engine that was lost gets no new rollouts for a while, and open ones go on elsewhere; a request that is under way when
its engine is lost fails, with the cause.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Sequence

from grpo_bench.contract import Ids, Remote, Sample, Sampling, WorkerLost

_SLACK = 1.25
"""How many times its even share of the open rollouts an engine may have before its affinities go elsewhere."""
_AVOID_S = 5.0
"""How long an engine that was lost gets no new rollouts; it is tried again after."""


class VllmGeneratorClient:
    """A GeneratorClient over the engines' Remotes."""

    def __init__(self, engines: Sequence[Remote]) -> None:
        local = [rank for rank, engine in enumerate(engines) if engine.local]
        self._engines = {rank: engines[rank] for rank in local or range(len(engines))}
        self._asked: dict[str, int] = {}
        self._homes: dict[str, int] = {}
        self._open: Counter[int] = Counter()
        self._lost_at: dict[int, float] = {}

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        rank = self._home(rollout_of(stream), affinity)
        self._asked[request_id] = rank
        try:
            return await self._engines[rank].call("generate", request_id, ids, sampling, stream, deadline_s=deadline_s)
        except WorkerLost:
            self._lost_at[rank] = self._now()
            raise
        finally:
            self._asked.pop(request_id, None)

    async def abort(self, request_id: str) -> None:
        ranks = [self._asked[request_id]] if request_id in self._asked else list(self._engines)
        for rank in ranks:
            try:
                await self._engines[rank].call("abort", request_id)
            except WorkerLost:  # and the request with it
                self._lost_at[rank] = self._now()

    async def release(self, rollout_id: str) -> None:
        if (rank := self._homes.pop(rollout_id, None)) is not None:
            self._open[rank] -= 1

    def _home(self, rollout: str, affinity: str) -> int:
        rank = self._homes.get(rollout)
        if rank is None or self._avoided(rank):
            if rank is not None:
                self._open[rank] -= 1
            rank = self._homes[rollout] = self._choose(affinity)
            self._open[rank] += 1
        return rank

    def _choose(self, affinity: str) -> int:
        ranked = sorted(self._engines, key=lambda rank: _rank_key(affinity, rank))
        usable = [rank for rank in ranked if not self._avoided(rank)] or ranked
        most = math.ceil(_SLACK * (sum(self._open[rank] for rank in usable) + 1) / len(usable))
        return next(rank for rank in usable if self._open[rank] < most)

    def _avoided(self, rank: int) -> bool:
        return rank in self._lost_at and self._now() < self._lost_at[rank] + _AVOID_S

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def rollout_of(stream: str) -> str:
    """The rollout that a random stream belongs to."""
    return stream.rpartition("/")[0]


def _rank_key(affinity: str, rank: int) -> bytes:
    return hashlib.blake2b(f"{rank}/{affinity}".encode(), digest_size=8).digest()


def make(engines: Sequence[Remote]) -> VllmGeneratorClient:
    """The descriptor's client factory."""
    return VllmGeneratorClient(engines)
