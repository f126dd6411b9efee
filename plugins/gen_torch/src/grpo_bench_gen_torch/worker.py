"""An engine as a worker: an asyncio task runs batch steps while there is anything to run.

Large batches are what makes sampling cheap, so requests run in *waves*. A rollout that got a reply and is not over is
*away*: busy in its sandbox, about to ask again. Between waves the engine waits until few are away beside those that
ask; while a wave runs, requests join it when they at least double the batch. Waiting ends early where nobody comes for
``gather_s``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from grpo_bench.contract import (
    Floats, Ids, InputError, PluginError, RefitError, Sample, Sampling, Transfer, WorkerContext,
)
from grpo_bench.steps.transport import NAME, receive_tensors
from grpo_bench_model_qwen3 import Qwen3, assign, load_tensors, read_config, rows_are_independent

from .client import rollout_of
from .engine import Engine

_ASK_PER_AWAY = 3
"""A wave begins when this many rollouts ask for each that is away."""


class EngineWorker:
    """What clients and the controller call."""

    def __init__(self, context: WorkerContext) -> None:
        config, self._rank = context.config, context.rank
        torch.set_num_threads(config["threads"])
        model = Qwen3(read_config(config["checkpoint"]))
        if config["deterministic"] and not rows_are_independent(model.config):
            raise InputError("matrix products of this machine depend on the batch they run in, so sampling is not "
                             "deterministic here", hint="set deterministic = false in the profile")
        self._engine = Engine(model, config["slots"], config["capacity"], config["prompt_tokens"],
                              config["temperature"])
        self._gather_s: float = config["gather_s"]
        self._allowed = {_distribution(sampling) for sampling in config["sampling"]}
        self._waiting: dict[str, asyncio.Future[Sample]] = {}
        self._admitting = True
        self._stepping = True
        self._arrivals = 0
        self._away: set[str] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(), name="torch-engine")

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, stream: str, affinity: str) -> Sample:
        self._check(sampling)
        if request_id in self._waiting:
            raise PluginError(f"request {request_id} is running already")
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            self._engine.add(request_id, ids, sampling, stream, affinity,
                             lambda sample: None if future.done() else future.set_result(sample))
            self._arrivals += 1
            self._away.discard(rollout_of(stream))
            self._changed.set()
            sample = await future
            self._away.add(rollout_of(stream))
            return sample
        finally:
            del self._waiting[request_id]
            if not future.done() or future.cancelled():
                self.abort(request_id)

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)
        self._changed.set()

    def release(self, rollout_id: str) -> None:
        self._away.discard(rollout_id)
        self._changed.set()

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        self._admitting = False
        if mode == "keep":
            self._stepping = False
            return
        while self._engine.running:
            self._raise_failure()
            await asyncio.sleep(0.001)

    async def receive(self, transfer: Transfer) -> None:
        if self._engine.running and self._stepping:
            raise RefitError("weights cannot change while requests are running", hint="pause the generator first")
        self._engine.version = None
        tensors: dict[str, torch.Tensor] = {}
        if transfer.transport == "hf_folder":
            tensors = load_tensors(transfer.rendezvous)
        elif transfer.transport == NAME:
            async for spec, data in receive_tensors(transfer, self._rank):
                flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, spec.dtype))
                tensors[spec.name] = flat.view(spec.shape)
        else:
            raise RefitError(f"unknown transport {transfer.transport!r}", hint=f"known here: {NAME}, hf_folder")
        try:
            assign(self._engine.model, tensors)
        except ValueError as error:
            raise RefitError(f"weight version {transfer.version} does not fit this policy: {error}") from error
        self._engine.forget()
        self._away.clear()
        self._engine.version = transfer.version

    async def resume(self) -> None:
        if self._engine.version is None:
            raise RefitError("this engine has no weights", hint="receive them before resuming")
        self._admitting = self._stepping = True
        self._changed.set()

    def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        return self._engine.probe([np.asarray(sequence, np.int32) for sequence in sequences])

    def health(self) -> Mapping[str, Any]:
        self._raise_failure()
        return {"version": self._engine.version, "running": self._engine.running, "queued": self._engine.queued,
                **self._engine.counters}

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while True:
                if not self._ready():
                    self._changed.clear()
                    await self._changed.wait()
                await self._gather()
                if self._ready():
                    self._engine.step(admit=self._admitting and self._worth_joining())
        except Exception as error:
            self._failure = error
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(PluginError(f"the engine failed: {type(error).__name__}: {error}"))
            raise

    def _ready(self) -> bool:
        engine = self._engine
        return bool(self._stepping and engine.version is not None and
                    (engine.running or (self._admitting and engine.queued)))

    def _worth_joining(self) -> bool:
        engine = self._engine
        return not self._gather_s or not engine.running or engine.queued >= max(engine.running, len(self._away))

    async def _gather(self) -> None:
        """Let other tasks run; between waves wait for the rollouts that are away."""
        await asyncio.sleep(0)
        while self._gather_s and not self._engine.running and self._engine.queued < _ASK_PER_AWAY * len(self._away):
            before = self._arrivals
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._gather_s):
                    await self._changed.wait()
            if self._arrivals == before:
                return

    def _check(self, sampling: Sampling) -> None:
        self._raise_failure()
        if _distribution(sampling) not in self._allowed:
            raise PluginError(f"the request's sampling is neither the training nor the validation one: {sampling}")
        if self._engine.version is None and self._admitting:
            raise PluginError("this engine has no weights yet", hint="it has to receive some first")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise PluginError(f"the engine failed: {self._failure}", hint="restart it") from self._failure


def _distribution(sampling: Sampling) -> Sampling:
    """What both sampling profiles fix; the length of one reply may be shorter."""
    return replace(sampling, max_tokens=0, max_context=0)


def make(context: WorkerContext) -> EngineWorker:
    """The group's target."""
    return EngineWorker(context)
