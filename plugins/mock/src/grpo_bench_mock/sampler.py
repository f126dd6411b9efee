"""The generator: control half, engines in workers, and the client.

What is replied is for :class:`Replies` to say. Here it is one of a few canned texts in the policy's own tokens, chosen
by hashing the sampling seed and the request's stream, with odds that depend on the weights' skill and on the task's
difficulty (a hash of the prompt before the first reply). A reply is handed out token by token where tokens take time; a
pause that keeps requests suspends it between two tokens, and what follows is sampled under the new weights. Weights of
a trainer that is no mock are read and checked to the last byte; all that is kept of them is their hash. From a
checkpoint the mock trainer's come as the tensor that they are there.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from grpo_bench.contract import (
    Address, FinishReason, GroupSpec, PluginContext, PluginError, Remote, Sample, Sampling, TensorSpec, Transfer,
    WorkerContext, WorkerGroup,
)
from grpo_bench.contract.values import Floats, Ids
from grpo_bench.policy import ChatFormat
from grpo_bench.steps.stored import StoredTensors
from grpo_bench.steps.transport import HF_FOLDER, NAME as SAFETENSORS, receive_tensors

from . import weights as w
from .chance import uniform
from .config import GeneratorConfig, ServingConfig
from .faults import Faults, MockBreakdown, Spoilt, spend, spoil

POLL_S, LONGEST_POLL_S = 0.001, 0.25
"""How soon an engine looks again whether the sender's file is there: at first, and at most."""

HEADER = 3
"""Tokens by which the place where a reply begins is known again."""

VIEW, SUBMIT = (f"<tool_call>\n<function={name}>\n</function>\n</tool_call>" for name in ("view", "submit"))
RIGHT, WRONG = ("<tool_call>\n<function=edit>\n<parameter=line>\n1\n</parameter>\n"
                f"<parameter=text>\n{text}\n</parameter>\n</function>\n</tool_call>\n{SUBMIT}"
                for text in ("right", "wrong"))


class Replies(Protocol):
    """What an engine replies."""

    def reply(self, ids: Ids, sampling: Sampling, stream: str, skill: float) -> Ids:
        """The whole reply to a prompt, without the token that ends it."""
        ...


class MockGenerator:
    """The contract's Generator; ``target`` makes its engines."""

    def __init__(self, context: PluginContext, target: str = "grpo_bench_mock.sampler:make_engine") -> None:
        self._context = context
        self._target = target
        self._faults = Faults("generator", context.config.faults)
        self._group: WorkerGroup | None = None
        self._version = 0

    async def start(self) -> None:
        config: ServingConfig = self._context.config
        await self._faults.at("start")
        await spend(config.start_s)
        self._group = await self._context.fabric.start_group(GroupSpec(
            name="generator", target=self._target, placement=self._context.placement,
            config={"settings": config.model_dump(mode="json"), "checkpoint": str(self._context.policy.checkpoint),
                    "sampling": tuple(self._context.shared["sampling"].values())}))

    def addresses(self) -> tuple[Address, ...]:
        return tuple(self._engines.address(rank) for rank in range(self._engines.size))

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        await self._faults.at("pause", step=self._version)
        await self._engines.call_all("pause", mode)

    async def receive(self, transfer: Transfer) -> None:
        await self._engines.call_all("receive", transfer)
        self._version = transfer.version

    async def resume(self) -> None:
        await self._faults.at("resume", step=self._version)
        await self._engines.call_all("resume")

    async def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        fault = await self._faults.at("probe", step=self._version)
        return [spoil(answer, fault) for answer in await self._engines.call(0, "probe", list(sequences))]

    async def health(self) -> Mapping[str, Any]:
        return {"engines": self._engines.size, "version": self._version,
                "running": await self._engines.call_all("running")}

    async def lost(self) -> Sequence[int]:
        answers = await asyncio.gather(*(self._engines.call(rank, "running") for rank in range(self._engines.size)),
                                       return_exceptions=True)
        return [rank for rank, answer in enumerate(answers) if isinstance(answer, PluginError)]

    async def restart(self, engine: int) -> None:
        await self._engines.restart(engine)

    async def close(self) -> None:
        if self._group is not None:
            await self._group.close()
            self._group = None

    @property
    def _engines(self) -> WorkerGroup:
        if self._group is None:
            raise RuntimeError("the generator is not started")
        return self._group


class MockEngine:
    """One engine, in a worker."""

    def __init__(self, context: WorkerContext, config: ServingConfig, chat_format: ChatFormat,
                 replies: Replies) -> None:
        self._rank = context.rank
        self._config = config
        self._faults = Faults("generator", config.faults)
        self._format = chat_format
        self._replies = replies
        self._allowed = {_distribution(sampling) for sampling in context.config["sampling"]}
        self._weights: w.Weights | None = None
        self._version = -1
        self._broken: MockBreakdown | None = None
        self._waiting: dict[str, asyncio.Task[Any]] = {}
        self._requests: dict[str, asyncio.Task[Any]] = {}
        self._open = asyncio.Event()
        self._moving = asyncio.Event()
        self._moving.set()
        self._idle = asyncio.Event()
        self._idle.set()

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, stream: str) -> Sample:
        self._check_whole()
        if self._weights is None:
            raise RuntimeError("this engine has no weights yet")
        if _distribution(sampling) not in self._allowed:
            raise ValueError(f"the request's sampling is neither the training nor the validation one: {sampling}")
        try:
            fault = await self._faults.at("generate", step=self._version, about=stream)
        except MockBreakdown as error:
            self._broken = error
            raise
        task = asyncio.current_task()
        assert task is not None
        self._waiting[request_id] = task
        try:
            await self._open.wait()
        finally:
            del self._waiting[request_id]
        self._requests[request_id] = task
        self._idle.clear()
        try:
            return await self._sample(ids, sampling, stream, fault)
        finally:
            del self._requests[request_id]
            if not self._requests:
                self._idle.set()

    def abort(self, request_id: str) -> None:
        if (task := self._requests.get(request_id) or self._waiting.get(request_id)) is not None:
            task.cancel()

    async def pause(self, mode: Literal["drain", "keep"]) -> None:
        self._open.clear()
        if mode == "drain":
            await self._idle.wait()
        else:
            self._moving.clear()

    async def receive(self, transfer: Transfer) -> None:
        fault = await self._faults.at("receive", step=transfer.version)
        await spend(self._config.receive_s)
        received = await self._arrival(transfer)
        if fault != "wrong" or self._weights is None:
            self._weights = received * np.nan if fault == "nan" else received
        self._version = transfer.version

    async def _arrival(self, transfer: Transfer) -> w.Weights:
        if transfer.transport == HF_FOLDER:
            return _lying(Path(transfer.rendezvous))
        if transfer.transport == SAFETENSORS:
            return await _received(transfer, self._rank)
        return await _awaited(Path(transfer.rendezvous, w.FILE))

    def resume(self) -> None:
        self._moving.set()
        self._open.set()

    def probe(self, sequences: Sequence[Ids]) -> list[Floats]:
        return [w.log_probabilities(sequence, self._loaded) for sequence in sequences]

    def running(self) -> int:
        self._check_whole()
        return len(self._requests)

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise RuntimeError(f"this engine is broken: {self._broken}")

    @property
    def _loaded(self) -> w.Weights:
        if self._weights is None:
            raise RuntimeError("this engine has no weights yet")
        return self._weights

    async def _sample(self, ids: Ids, sampling: Sampling, stream: str, fault: Spoilt) -> Sample:
        stop = sampling.stop_token_ids[0] if sampling.stop_token_ids else self._format.eos_id
        whole = np.append(self._replies.reply(ids, sampling, stream, self._loaded[0]), stop).astype(np.int32)
        room = min(sampling.max_tokens, sampling.max_context - len(ids))
        reply = whole[:max(0, room)]
        known = np.concatenate([ids[-1:], reply])
        values = np.zeros(len(reply), np.float32)
        versions: list[list[int]] = []
        stride = 1 if self._config.token_s else max(1, len(reply))
        for index in range(0, len(reply), stride):
            if self._config.token_s:
                await asyncio.sleep(self._config.token_s)
                await self._moving.wait()
                self._check_whole()
            if not versions or versions[-1][1] != self._version:
                values[index:] = w.log_probabilities(known, self._loaded)[index + 1:]
                versions.append([0, self._version])
            versions[-1][0] += stride
        return Sample(reply, spoil(values, fault),
                      FinishReason.STOP if len(reply) == len(whole) else FinishReason.LENGTH,
                      tuple((count, version) for count, version in versions))


class Canned:
    """Looks around, or hands in the right answer or a wrong one."""

    def __init__(self, config: GeneratorConfig, chat_format: ChatFormat) -> None:
        self._config = config
        self._replies = {text: chat_format.encode(text) for text in (VIEW, RIGHT, WRONG)}

    def reply(self, ids: Ids, sampling: Sampling, stream: str, skill: float) -> Ids:
        return self._replies[self._choose(ids, sampling, stream, skill)]

    def _choose(self, ids: Ids, sampling: Sampling, stream: str, skill: float) -> str:
        if uniform(sampling.seed, stream, "look") < self._config.look_share:
            return VIEW
        hardness = 2 * uniform(hashlib.blake2b(_opening(ids).tobytes()).hexdigest(), "hardness") - 1
        odds = self._config.base_skill + skill - self._config.spread * hardness
        return RIGHT if uniform(sampling.seed, stream, "answer") < 1 / (1 + np.exp(-odds)) else WRONG


def _distribution(sampling: Sampling) -> Sampling:
    """What both sampling profiles fix; limits are a request's own."""
    return replace(sampling, max_tokens=0, max_context=0)


def _opening(ids: Ids) -> Ids:
    """The prompt before the first reply: up to the first place that reads as the prompt's end does."""
    header = ids[-HEADER:]
    places = len(ids) - len(header) + 1
    alike = [ids[offset:places + offset] == token for offset, token in enumerate(header)]
    return ids[:np.logical_and.reduce(alike).argmax()]


class _Taken:
    """The mock trainer's weights out of the tensors that were taken, or what stands for those of another."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes] = {}
        self._own: w.Weights | None = None

    def take(self, spec: TensorSpec, data: bytes) -> None:
        self._digests[spec.name] = hashlib.sha256(data).digest()
        if spec == w.SPEC:
            self._own = w.load(data)

    @property
    def weights(self) -> w.Weights:
        if self._own is not None:
            return self._own
        named = (name.encode() + digest for name, digest in sorted(self._digests.items()))
        return w.of_digest(hashlib.sha256(b"".join(named)).digest())


async def _received(transfer: Transfer, receiver: int) -> w.Weights:
    taken = _Taken()
    async for spec, data in receive_tensors(transfer, receiver):
        taken.take(spec, data)
    return taken.weights


def _lying(folder: Path) -> w.Weights:
    taken, stored = _Taken(), StoredTensors(folder)
    for spec in stored.specs:
        taken.take(spec, stored.read(spec))
    return taken.weights


async def _awaited(path: Path) -> w.Weights:
    """The weights, once the sender's file is there."""
    wait = POLL_S
    while not path.exists():  # noqa: ASYNC240 - nobody could set an event across processes
        await asyncio.sleep(wait)
        wait = min(2 * wait, LONGEST_POLL_S)
    return w.read(path)


class MockClient:
    """The contract's GeneratorClient: requests of one affinity go to one engine."""

    def __init__(self, engines: Sequence[Remote]) -> None:
        self._engines = engines
        self._where: dict[str, Remote] = {}

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        engine = self._engines[int(uniform(affinity) * len(self._engines))]
        self._where[request_id] = engine
        try:
            return await engine.call("generate", request_id, ids, sampling, stream, deadline_s=deadline_s)
        finally:
            del self._where[request_id]

    async def abort(self, request_id: str) -> None:
        if (engine := self._where.get(request_id)) is not None:
            await engine.call("abort", request_id)

    async def release(self, rollout_id: str) -> None:
        """Nothing is kept between turns."""


def create(context: PluginContext) -> MockGenerator:
    """The factory."""
    return MockGenerator(context)


def make_engine(context: WorkerContext) -> MockEngine:
    """The worker target."""
    config = GeneratorConfig.model_validate(context.config["settings"])
    chat_format = ChatFormat(context.config["checkpoint"])
    return MockEngine(context, config, chat_format, Canned(config, chat_format))


def make_client(remotes: Sequence[Remote]) -> MockClient:
    """The client factory."""
    return MockClient(remotes)
