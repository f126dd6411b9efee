"""One engine, in a worker: it samples token by token, each request for itself.

A request runs while the engine is not paused, and takes turns with the others after every token. When the weights
change under it, what it has computed so far is computed again from its tokens. A token is drawn with a number that is a
hash of seed, stream and position, so it depends on nothing that happens beside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import (
    FinishReason, Floats, Ids, Purpose, RefitError, Sample, Sampling, TensorSpec, Transfer, WorkerContext,
)
from grpo_bench.steps.transport import receive_tensors

from .model import Cache, Model

_STORED = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


class Engine:
    def __init__(self, context: WorkerContext) -> None:
        self._rank = context.rank
        self._settings = json.loads(Path(context.config["checkpoint"], "config.json").read_text("utf-8"))
        self._profiles = {sampling.purpose: sampling for sampling in context.config["sampling"]}
        self._model: Model | None = None
        self._version = -1
        self._asked: set[str] = set()
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        self._open, self._moving, self._idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for event in (self._open, self._moving, self._idle):
            event.set()

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, stream: str) -> Sample:
        if _distribution(sampling) != _distribution(self._profiles[sampling.purpose]):
            raise ValueError(f"neither profile samples like this: {sampling}")
        self._asked.add(request_id)
        try:
            await self._open.wait()
            self._running.add(request_id)
            self._idle.clear()
            return await self._sample(request_id, ids, sampling, stream)
        finally:
            for requests in (self._asked, self._running, self._aborted):
                requests.discard(request_id)
            if not self._running:
                self._idle.set()

    def abort(self, request_id: str) -> None:
        if request_id in self._asked:
            self._aborted.add(request_id)

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        self._open.clear()
        if mode == "drain":
            await self._idle.wait()
        self._moving.clear()

    async def receive(self, transfer: Transfer) -> None:
        tensors = {spec.name: _array(spec, data) async for spec, data in receive_tensors(transfer, self._rank)}
        try:
            self._model = Model(tensors, self._settings)
        except (KeyError, ValueError) as error:
            raise RefitError(f"weight version {transfer.version} does not fit this policy: {error}") from error
        self._version = transfer.version

    def resume(self) -> None:
        self._moving.set()
        self._open.set()

    def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        return [self._given(ids) for ids in sequences]

    def health(self) -> Mapping[str, Any]:
        return {"version": self._version, "running": len(self._running)}

    async def _sample(self, request_id: str, ids: Ids, sampling: Sampling, stream: str) -> Sample:
        reply: list[int] = []
        values: list[float] = []
        versions: list[int] = []
        pending = ids
        cache = Cache()
        room = min(sampling.max_tokens, sampling.max_context - len(ids))
        finish = FinishReason.LENGTH
        while len(reply) < room:
            await asyncio.sleep(0)
            await self._moving.wait()
            if request_id in self._aborted:
                finish = FinishReason.ABORT
                break
            if versions and versions[-1] != self._version:
                cache, pending = Cache(), np.append(ids, np.array(reply, np.int32))
            table = _log_softmax(self._loaded.extend(cache, pending)[-1] / sampling.temperature)
            token = _draw(table, _uniform(sampling.seed, stream, len(reply)))
            reply.append(token)
            values.append(table[token])
            versions.append(self._version)
            pending = np.array([token], np.int32)
            if token in sampling.stop_token_ids:
                finish = FinishReason.STOP
                break
        runs = tuple((len(list(tokens)), version) for version, tokens in groupby(versions))
        return Sample(np.array(reply, np.int32), np.array(values, np.float32), finish, runs)

    def _given(self, ids: Ids) -> Floats:
        """Log-probability [T] of each token given those before it."""
        values = np.zeros(len(ids), np.float32)
        if len(ids) > 1:
            temperature = self._profiles[Purpose.TRAIN].temperature
            table = _log_softmax(self._loaded.extend(Cache(), ids[:-1]) / temperature)
            values[1:] = np.take_along_axis(table, ids[1:, None].astype(np.int64), 1)[:, 0]
        return values

    @property
    def _loaded(self) -> Model:
        if self._model is None:
            raise RuntimeError("this engine has no weights yet")
        return self._model


def _distribution(sampling: Sampling) -> Sampling:
    """What a profile fixes; a single reply may be bounded more tightly."""
    return replace(sampling, max_tokens=0, max_context=0)


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def _draw(table: Floats, uniform: float) -> int:
    """The token at which the probabilities [V] add up to more than ``uniform`` in [0, 1)."""
    cumulative = np.exp(table, dtype=np.float64).cumsum()
    return min(int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right")), len(table) - 1)


def _uniform(seed: int, stream: str, position: int) -> float:
    digest = hashlib.blake2b(f"{seed}/{stream}/{position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _array(spec: TensorSpec, data: bytes) -> Floats:
    """A weight in float32; bfloat16 is the upper half of one."""
    stored = np.frombuffer(data, _STORED[spec.dtype])
    if spec.dtype == "bfloat16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32).reshape(spec.shape)


def make(context: WorkerContext) -> Engine:
    """The group's target."""
    return Engine(context)
