"""One rollout's talk with the policy.

A session holds the rollout's token record and has at most one call in flight: a newer call cancels an older one. A
turn enters the record in one step after its sample has arrived, so a call that is cancelled, superseded or fails
leaves nothing behind and its request is aborted at the generator.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract import (
    Boundary, Clock, DeadlineExceeded, FinishReason, GeneratorClient, PluginError, Reply, Sample, Sampling,
    TokenSequence, ToolCall,
)
from ..contract.values import Floats, Ids
from .chat_format import ChatFormat
from .messages import CallMemory, ConversationError, prepare
from .record import Prompt, Record, checked
from .toolcalls import Parsed, typed_arguments

if TYPE_CHECKING:
    from .gateway import Gateway

_JSON = json.JSONEncoder(ensure_ascii=False)
_NO_IDS, _NO_FLOATS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class TurnLimit(RuntimeError):
    """A rollout asked for more replies than it may have."""


class CallSuperseded(RuntimeError):
    """A call was given up because a newer one of the same rollout came, or because the rollout ended."""


@dataclass(frozen=True, slots=True)
class Completion:
    """A reply with the tokens behind it: sampled ids [n] and their log-probabilities [n]."""

    reply: Reply
    prompt_tokens: int
    sampled_ids: Ids
    log_probabilities: Floats


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """What a rollout left. ``truncated``: the context limit ended it. ``error``: the latest call failed with this; an
    agent that is a program may have hidden it."""

    sequences: tuple[TokenSequence, ...]
    truncated: bool
    counters: Mapping[str, int]
    generate_s: float
    error: Exception | None = None


@dataclass(slots=True)
class _Call:
    task: asyncio.Task[Any]
    cancelling: int
    superseded: bool = False


class Policy:
    """Opens sessions; shared by all rollouts of a worker."""

    def __init__(self, chat_format: ChatFormat, max_context: int, client: GeneratorClient, clock: Clock) -> None:
        self.format = chat_format
        self.max_context = max_context
        self.client = client
        self.clock = clock
        self._requests = 0
        self._told: set[asyncio.Task[None]] = set()

    def open(self, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
             max_turns: int | None = None) -> Session:
        """A session for one rollout; ``request_s`` seconds bound each reply, ``max_turns`` their number."""
        return Session(self, rollout_id, affinity, sampling, request_s, max_turns)

    def new_request_id(self, rollout_id: str, turn: int) -> str:
        self._requests += 1
        return f"{rollout_id}/{turn}#{self._requests}"

    def abort(self, request_id: str) -> None:
        """Tell the generator without waiting; one that cannot hear it will fail its next request."""
        self._tell(self.client.abort(request_id))

    def release(self, rollout_id: str) -> None:
        """Tell the generator that a rollout asks no more, without waiting."""
        self._tell(self.client.release(rollout_id))

    def _tell(self, call: Coroutine[Any, Any, None]) -> None:
        async def told() -> None:
            with contextlib.suppress(Exception):
                await call

        task = asyncio.ensure_future(told())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    def gateway(self) -> Gateway:
        """A server for sessions of this policy, not started."""
        from .gateway import Gateway

        return Gateway(self.clock)

    async def close(self) -> None:
        """Wait until the generator knows of every abort and release."""
        await asyncio.gather(*self._told)


class Session:
    """The policy as one rollout's agent sees it (a ``PolicyClient``). ``replies`` counts what it was given, replies
    that it asked for again included; ``asked`` holds ``messages`` and ``tools`` of its first request."""

    def __init__(self, policy: Policy, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
                 max_turns: int | None = None) -> None:
        self.rollout_id = rollout_id
        self.sampling = sampling
        self.format = policy.format
        self.replies = 0
        self.asked: Mapping[str, Any] | None = None
        self._max_turns = max_turns
        self._policy = policy
        self._affinity = affinity
        self._request_s = request_s
        self._limit = min(policy.max_context, sampling.max_context)
        self._record = Record(policy.format)
        self._memory = CallMemory()
        self._counters: Counter[str] = Counter()
        self._running: _Call | None = None
        self._truncated = False
        self._closed = False
        self._error: Exception | None = None
        self._latest: Completion | None = None

    async def chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Reply:
        """Answer the conversation. ``message`` of the reply belongs in the history as it is; its ``text`` is the
        content, which is the whole reply where no tool call could be read from it."""
        return (await self.complete(messages, tools)).reply

    async def complete(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Completion:
        """As :meth:`chat`, with the tokens."""
        if self._closed:
            raise CallSuperseded(f"rollout {self.rollout_id} has ended")
        if self._max_turns is not None and self.replies >= self._max_turns:
            raise TurnLimit(f"rollout {self.rollout_id} has had its {self._max_turns} replies")
        text = self.format.render(prepare(messages, self._memory), tools)
        if self.asked is None:
            self.asked = {"messages": list(messages), "tools": list(tools)}
        self._supersede()
        self._latest = None
        prompt = self._record.prompt(text)
        if not len(prompt.ids):
            raise ConversationError("the conversation renders to no tokens")
        room = self._limit - len(prompt.ids)
        if room <= 0:
            self._truncated, self._error = True, None
            return Completion(_reply(Parsed(""), (), truncated=True), len(prompt.ids), _NO_IDS, _NO_FLOATS)
        try:
            completion = await self._turn(prompt, room, tools)
        except CallSuperseded:
            raise
        except Exception as error:
            self._error = error
            raise
        self._latest, self._error = completion, None
        return completion

    def retract(self, completion: Completion) -> None:
        """Forget a turn whose reply never reached the agent; nothing happens once the agent has asked again."""
        if self._latest is completion:
            self._latest = None
            self._record.retract()
            self.replies -= 1
            self._counters["lost_replies"] += 1

    @property
    def truncated(self) -> bool:
        """Whether the context limit ended the rollout."""
        return self._truncated

    def close(self) -> RolloutRecord:
        """End the rollout; a call in flight is cancelled."""
        self._supersede()
        self._closed = True
        self._record.note_request(self._policy.clock.monotonic())
        sequences = self._record.sequences()
        counters = {**self._counters, "split_sequences": self._record.splits, "retried_turns": self._record.retried}
        return RolloutRecord(
            sequences, self._truncated, {name: count for name, count in counters.items() if count},
            sum(turn.generate_s for sequence in sequences for turn in sequence.turns), self._error)

    async def _turn(self, prompt: Prompt, room: int, tools: Sequence[Mapping[str, Any]]) -> Completion:
        """Sample one reply, record it, take it apart."""
        sampling, clock, turn = self.sampling, self._policy.clock, self._record.turns
        if room < sampling.max_tokens:
            sampling = replace(sampling, max_tokens=room)
        started_at = clock.monotonic()
        sample = await self._sample(prompt.ids, sampling, turn)
        text = self._record.commit(prompt, sample, started_at=started_at, ended_at=clock.monotonic())
        self.replies += 1
        not_finite = int(np.count_nonzero(~np.isfinite(sample.log_probabilities)))
        if not_finite:
            self._counters["nan_log_probabilities"] += not_finite
        cut = sample.finish is FinishReason.LENGTH
        if cut and sampling.max_tokens == room:
            self._truncated = True
        parsed = self.format.parse(self._without_stop(text, sample), f"call_{turn}")
        if parsed.malformed and not cut:
            self._counters["malformed_calls"] += 1
        reply = _reply(parsed, self._given(parsed.tool_calls, tools), truncated=cut)
        return Completion(reply, len(prompt.ids), sample.ids, sample.log_probabilities)

    async def _sample(self, ids: Ids, sampling: Sampling, turn: int) -> Sample:
        """The generator's answer. However this ends but well, the request is aborted."""
        policy, task = self._policy, asyncio.current_task()
        assert task is not None
        call = self._running = _Call(task, task.cancelling())
        request_id = policy.new_request_id(self.rollout_id, turn)
        try:
            async with asyncio.timeout(self._request_s):
                sample = await policy.client.generate(
                    request_id, ids, sampling, stream=f"{self.rollout_id}/{turn}", affinity=self._affinity,
                    deadline_s=self._request_s)
        except (Exception, asyncio.CancelledError) as error:
            policy.abort(request_id)
            if isinstance(error, TimeoutError):
                raise DeadlineExceeded(f"no reply within {self._request_s:g} s",
                                       boundary=Boundary(role="generator")) from error
            if isinstance(error, asyncio.CancelledError):
                self._counters["aborted_calls"] += 1
                if call.superseded and task.uncancel() <= call.cancelling:
                    raise CallSuperseded("a newer call of this rollout took its place") from None
            raise
        finally:
            if self._running is call:
                self._running = None
        try:
            return checked(sample, sampling.max_tokens)
        except ValueError as error:
            raise PluginError(str(error), boundary=Boundary(role="generator")) from error

    def _supersede(self) -> None:
        call, self._running = self._running, None
        if call is not None:
            call.superseded = True
            call.task.cancel()

    def _without_stop(self, text: str, sample: Sample) -> str:
        last = int(sample.ids[-1]) if len(sample.ids) else -1
        if last in self.sampling.stop_token_ids or last in self.format.stop_ids:
            return text.removesuffix(self.format.decode(sample.ids[-1:]))
        return text

    def _given(self, calls: tuple[ToolCall, ...], tools: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """The calls in OpenAI's form, remembered with their arguments as sampled."""
        given: list[dict[str, Any]] = []
        for call in calls:
            arguments = _JSON.encode(typed_arguments(call, tools))
            self._memory.keep(call.id, arguments, call.arguments)
            given.append({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
        return tuple(given)


def _reply(parsed: Parsed, calls: tuple[dict[str, Any], ...], *, truncated: bool) -> Reply:
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return Reply(text=parsed.content, tool_calls=parsed.tool_calls, truncated=truncated, message=message)


def make_policy(config: Mapping[str, Any], client: GeneratorClient, clock: Clock) -> Policy:
    """A policy from ``folder``, ``max_context``, ``enable_thinking`` and ``tool_parser``."""
    chat_format = ChatFormat(config["folder"], config["enable_thinking"], config["tool_parser"])
    return Policy(chat_format, config["max_context"], client, clock)
