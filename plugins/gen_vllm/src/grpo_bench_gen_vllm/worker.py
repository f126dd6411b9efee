# pyright: reportMissingImports=false
"""An engine as a worker: tokens in, tokens out, and the changes of its weights.

Requests wait here, not in vLLM, while the engine is paused and while it samples as many as it can at once: so whatever
vLLM holds runs, and ``drain`` has an end. An engine that has just started, and so has no weights, refuses them. A kept
request stays in vLLM, preempted, and its cache is computed again under the new weights; vLLM counts its tokens by
weight version.

The version is None from the moment weights begin to change until they have all arrived, the prefix cache is empty and
vLLM says that it has the version. Without one nothing is sampled.

vLLM's scheduler knows no pause with exceptions, so while the probe of a paused engine runs, kept requests run too. They
do so under complete weights, whose version their tokens tell.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import numpy as np

from grpo_bench.contract import (
    FinishReason, Floats, GrpoBenchError, Ids, PluginError, RefitError, Sample, Sampling, Transfer, WorkerContext,
    WorkerLost,
)

from .process import Process, prepare
from .sampling import distribution, parameters, scoring, to_sample, to_scores
from .updates import Updates

_NOTHING = Sample(np.zeros(0, np.int32), np.zeros(0, np.float32), FinishReason.ABORT, ())


class EngineWorker:
    """What clients and the controller call."""

    def __init__(self, process: Process, updates: Updates, config: Mapping[str, Any]) -> None:
        self._process = process
        self._updates = updates
        self._capacity: int = config["policy"].max_context
        self._vocabulary: int = config["policy"].vocab_size
        self._temperature: float = config["temperature"]
        self._allowed = {distribution(sampling) for sampling in config["sampling"]}
        self._places = asyncio.Semaphore(process.engine.vllm_config.scheduler_config.max_num_seqs)
        self._version: int | None = None
        self._paused = False
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self._running: set[str] = set()
        self._aborted: set[str] = set()
        self._probes = 0
        self._sampled = 0

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, stream: str) -> Sample:
        await self._check(ids, sampling)
        room = min(sampling.max_context, self._capacity) - len(ids)
        if request_id in self._waiting or request_id in self._running:
            raise PluginError(f"request {request_id} is running already")
        if not await self._admitted(request_id):
            return _NOTHING
        try:
            sample = await self._process.call(self._sample(request_id, ids, parameters(sampling, stream, room)))
            self._sampled += len(sample.ids)
            return sample
        finally:
            self._leave(request_id)

    async def abort(self, request_id: str) -> None:
        if request_id in self._waiting:
            self._aborted.add(request_id)
            self._waiting[request_id].cancel()
        elif request_id in self._running:
            await asyncio.sleep(0)  # by then vLLM knows the request, however new it is
            await self._process.call(self._process.engine.abort(request_id))

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        self._open.clear()
        if mode == "drain":
            await self._process.call(self._idle.wait())
        await self._process.call(self._process.engine.pause_generation(mode="keep", clear_cache=True))
        self._paused = True

    async def receive(self, transfer: Transfer) -> None:
        if not self._paused:
            if self._running:
                raise RefitError("weights cannot change while requests are running", hint="pause the generator first")
            await self.pause("drain")
        self._version = None
        try:
            await self._updates.take(transfer)
        except (WorkerLost, RefitError):
            raise
        except GrpoBenchError as error:
            raise RefitError(f"weight version {transfer.version} did not arrive: {error.message}",
                             hint=error.hint) from error
        except Exception as error:
            raise RefitError(f"weight version {transfer.version} does not fit this policy: {error}") from error
        self._version = transfer.version

    async def resume(self) -> None:
        if self._version is None:
            raise RefitError("this engine has no weights", hint="receive them before resuming")
        await self._process.call(self._process.engine.resume_generation())
        self._paused = False
        self._open.set()

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        await self._process.check()
        if self._version is None:
            raise RefitError("this engine has no weights", hint="receive them before probing")
        for ids in sequences:
            self._check_ids(ids)
        async with self._running_for_a_probe():
            return await self._process.call(asyncio.gather(*(self._scores(np.asarray(ids)) for ids in sequences)))

    async def health(self) -> Mapping[str, Any]:
        await self._process.check()
        return {"version": self._version, "running": len(self._running), "queued": len(self._waiting),
                "sampled_tokens": self._sampled, "processes": self._process.pids}

    async def close(self) -> None:
        await self._process.close()

    async def _admitted(self, request_id: str) -> bool:
        """Whether there is a place in vLLM for the request now, after waiting for it; False: it was aborted."""
        task = self._waiting[request_id] = asyncio.ensure_future(self._place(request_id))
        try:
            await self._process.call(task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if request_id not in self._aborted or (current is not None and current.cancelling()):
                if task.done() and not task.cancelled():
                    self._leave(request_id)
                raise
            return False
        finally:
            del self._waiting[request_id]
            aborted = request_id in self._aborted
            self._aborted.discard(request_id)
        if aborted:  # when it had its place already, but did not know yet
            self._leave(request_id)
        return not aborted

    async def _place(self, request_id: str) -> None:
        """From the moment that it has its place it counts as running: a drain that begins then waits for it."""
        await self._places.acquire()
        try:
            while not self._open.is_set():
                await self._open.wait()
        except BaseException:
            self._places.release()
            raise
        self._running.add(request_id)
        self._idle.clear()

    def _leave(self, request_id: str) -> None:
        self._running.discard(request_id)
        self._places.release()
        if not self._running:
            self._idle.set()

    async def _sample(self, request_id: str, ids: Ids, asked: Mapping[str, Any]) -> Sample:
        return to_sample((await self._answer(request_id, ids, asked)).outputs[0])

    async def _scores(self, ids: Ids) -> Floats:
        if len(ids) < 2:
            return np.zeros(len(ids), np.float32)
        self._probes += 1
        output = await self._answer(f"probe-{self._probes}", ids[:-1], scoring(self._temperature, int(ids[-1])))
        return to_scores(ids, output.prompt_logprobs, output.outputs[0].logprobs[0])

    async def _answer(self, request_id: str, ids: Ids, asked: Mapping[str, Any]) -> Any:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        wanted = SamplingParams(**asked, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in self._process.engine.generate(tokens_input(ids.tolist()), wanted, request_id):
            if output.finished:
                return output
        raise PluginError(f"vLLM gave no answer to request {request_id}")

    @asynccontextmanager
    async def _running_for_a_probe(self) -> AsyncIterator[None]:
        if not self._paused:
            yield
            return
        await self._process.call(self._process.engine.resume_generation())
        try:
            yield
        finally:
            await self._process.call(self._process.engine.pause_generation(mode="keep", clear_cache=False))

    async def _check(self, ids: Ids, sampling: Sampling) -> None:
        await self._process.check()
        room = min(sampling.max_context, self._capacity)
        if not 0 < len(ids) < room:
            raise PluginError(f"a prompt of {len(ids)} tokens leaves no room for a reply within {room}")
        self._check_ids(ids)
        if distribution(sampling) not in self._allowed:
            raise PluginError(f"the request's sampling is neither the training nor the validation one: {sampling}")
        if self._version is None and not self._paused:
            raise PluginError("this engine has no weights yet", hint="it has to receive some first")

    def _check_ids(self, ids: Ids) -> None:
        """PluginError for ids that would take the whole engine down."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocabulary):
            raise PluginError(f"token ids go from {ids.min()} to {ids.max()}, the policy's vocabulary has "
                              f"{self._vocabulary}")


async def make(context: WorkerContext) -> EngineWorker:
    """The group's target."""
    config, arguments = context.config, prepare(context)
    followers = [await context.connect(address) for address in config["followers"][context.rank]]
    process = await Process.start(arguments, context.host, followers)
    if config["temperature"] != 1.0:
        await process.rpc("grpo_bench_score_prompts_at", config["temperature"])
    await process.call(process.engine.get_supported_tasks())  # what vLLM would ask at the first request
    updates = Updates(process, context.rank, arguments["tensor_parallel_size"])
    await updates.start()
    return EngineWorker(process, updates, config)
