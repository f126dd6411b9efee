"""The rollout worker's half: requests to the engines.

Requests of one affinity go to one engine, so that they find each other's prefixes in its cache. Engines of this process
come first, since calling them serialises nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from grpo_bench.contract import Ids, Remote, Sample, Sampling


class TorchGeneratorClient:
    """A GeneratorClient over the engines' Remotes."""

    def __init__(self, engines: Sequence[Remote]) -> None:
        self._engines = [engine for engine in engines if engine.local] or list(engines)
        self._asked: dict[str, Remote] = {}
        self._homes: dict[str, Remote] = {}

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        digest = hashlib.blake2b(affinity.encode(), digest_size=8).digest()
        engine = self._engines[int.from_bytes(digest, "little") % len(self._engines)]
        self._asked[request_id] = engine
        self._homes[rollout_of(stream)] = engine
        try:
            return await engine.call("generate", request_id, ids, sampling, stream, affinity, deadline_s=deadline_s)
        finally:
            self._asked.pop(request_id, None)

    async def abort(self, request_id: str) -> None:
        engines = [self._asked[request_id]] if request_id in self._asked else self._engines
        for engine in engines:
            await engine.call("abort", request_id)

    async def release(self, rollout_id: str) -> None:
        if (engine := self._homes.pop(rollout_id, None)) is not None:
            await engine.call("release", rollout_id)


def rollout_of(stream: str) -> str:
    """The rollout that a random stream belongs to."""
    return stream.rpartition("/")[0]


def make(engines: Sequence[Remote]) -> TorchGeneratorClient:
    """The descriptor's client factory."""
    return TorchGeneratorClient(engines)
