"""The gateway against vLLM's own server: the same conversations, the same sampled ids, compared end to end.

Both render with one chat template and read the same reply. What they make of it may differ only as ``PROMPTS`` and
``REPLIES`` say, each with its reason; a difference that is not listed fails, and so does one that is listed and gone.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_bench.contract import FinishReason, Ids, Purpose, Sample, Sampling
from grpo_bench.policy import ChatFormat, Gateway, make_policy

from .corpus import ANSWERS, ASK, CONVERSATIONS, SUBMIT, TOOLS

pytestmark = pytest.mark.real("vllm")


@dataclass(frozen=True)
class Outcome:
    """What one side made of a request: the prompt's ids, and the reply's content and calls (name, arguments as JSON).
    No content is None here, however a side writes it. ``message`` is the reply as it was given."""

    prompt: list[int]
    content: str | None
    calls: list[tuple[str, str]]
    reasoning: str | None
    message: Mapping[str, Any] = field(compare=False)

    @property
    def reply(self) -> tuple[str | None, list[tuple[str, str]], str | None]:
        return self.content, self.calls, self.reasoning


FILLED = "the server fills in what a tool leaves out, as null; the gateway passes on what the agent wrote"


def filled(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"type": "function", "function": {"name": None, "description": None, "parameters": None,
                                              **item["function"]}} for item in tools]


PROMPTS: Mapping[str, tuple[str, Any]] = {
    "a tool without description or parameters": (FILLED, filled),
    "a call without arguments": (FILLED, filled),
}
"""Conversations whose prompts differ, with the reason, and with the tools that would make the gateway's the same."""

REPAIRED = "a reply that is not quite a call stays text at the gateway; the server makes a call of what it can read"
DROPPED = "a reply that is not quite a call stays text at the gateway; the server drops what it cannot read"
NEAREST = "the server ends a value at the first tag in it; the gateway where the next parameter or the end follows"
ANY_JSON = "where the schema wants no text, the server takes any JSON; the gateway what is of the schema's type"
PYTHON = "the server reads figures and booleans as Python does; the gateway as JSON, with Python's True and False"
NO_REASONING = "with thinking off the server knows no reasoning and drops its end; the gateway splits it off"

REPLIES: Mapping[str, tuple[str, str | None, list[tuple[str, str]]]] = {
    "words after a call": (DROPPED, None, [("edit", '{"path": "a.py"}')]),
    "words between two calls": (DROPPED, None, [("edit", '{"path": "a.py"}'), ("run", '{"command": "pytest"}')]),
    "a parameter twice": (DROPPED, None, [("edit", '{"path": "b.py"}')]),
    "no end of a parameter": (DROPPED, None, [("edit", "{}")]),
    "no function": (DROPPED, None, []),
    "no name": (DROPPED, None, []),
    "a call in JSON": (DROPPED, None, []),
    "no end of the first parameter": (REPAIRED, None, [("edit", '{"path": "a.py", "line": 1}')]),
    "no end of the function": (REPAIRED, None, [("edit", '{"path": "a.py"}')]),
    "no end of the call": (REPAIRED, None, [("edit", '{"path": "a.py"}')]),
    "no start of the call": (REPAIRED, None, [("edit", '{"path": "a.py"}')]),
    "markup in a value": (NEAREST, None, [("edit", "{}")]),
    "a tag of a parameter in a value": (NEAREST, None, [("edit", '{"text": "say \'"}')]),
    "another type than the schema's": (ANY_JSON, None, [("run", '{"env": [1], "args": 7, "background": []}')]),
    "a figure for a boolean": (PYTHON, None, [("run", '{"background": true}')]),
    "figures that are not JSON": (PYTHON, None, [("run", '{"timeout": 5}'), ("edit", '{"line": 7}')]),
    "reasoning and words": (NO_REASONING, "<think>\nIt adds.\n\n\nI am done.", []),
    "reasoning and a call": (NO_REASONING, "<think>\nIt adds.", [("edit", '{"path": "a.py"}')]),
    "the end of reasoning alone": (NO_REASONING, "It adds.\n\n\nI am done.", []),
}
"""Replies that are read differently, with the reason, and with content and calls as the server has them."""


class HandClock:
    """No time passes in a test."""

    def monotonic(self) -> float:
        return 0.0

    def now_utc(self) -> str:
        return "2026-01-02T03:04:05.000000+00:00"


class Dictated:
    """A generator's client that samples what it is told; ``prompt`` is what it was asked last."""

    def __init__(self) -> None:
        self.reply: list[int] = []
        self.prompt: list[int] = []

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        self.prompt, count = ids.tolist(), len(self.reply)
        return Sample(np.array(self.reply, np.int32), np.zeros(count, np.float32), FinishReason.STOP, ((count, 1),))

    async def abort(self, request_id: str) -> None:
        """Nothing runs."""

    async def release(self, rollout_id: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Sides:
    """Both sides of the comparison. ``gateway`` and ``server`` take a request and the text that is to be sampled."""

    folder: Path
    vllm: Any

    @cached_property
    def chat(self) -> ChatFormat:
        return ChatFormat(self.folder)

    def ids(self, reply: str) -> list[int]:
        return [*self.chat.encode(reply).tolist(), self.chat.eos_id]

    def gateway(self, body: Mapping[str, Any], reply: str) -> Outcome:
        return asyncio.run(self._rollout([(body, reply)]))[0]

    def server(self, body: Mapping[str, Any], reply: str) -> Outcome:
        ids = self.ids(reply)
        answer = self.vllm.chat({**body, "return_token_ids": True, "vllm_xargs": {"script": json.dumps(ids)}})
        assert answer["choices"][0]["token_ids"] == ids
        return _outcome(answer["prompt_token_ids"], answer)

    def second_turn(self, reply: str) -> tuple[list[int], list[int]]:
        """The prompts after ``reply`` and a result, of the gateway in one rollout and of the server."""
        first = request([ASK], TOOLS)

        def follow(outcome: Outcome) -> dict[str, Any]:
            calls = [call["id"] for call in outcome.message.get("tool_calls") or ()]
            answers = [{"role": "tool", "tool_call_id": call, "content": "ok"} for call in calls] or [ASK]
            return request([ASK, outcome.message, *answers], TOOLS)

        ours = asyncio.run(self._rollout([(first, reply), (follow, "done")]))[1]
        return ours.prompt, self.server(follow(self.server(first, reply)), "done").prompt

    async def _rollout(self, turns: Sequence[tuple[Any, str]]) -> list[Outcome]:
        """Requests of one rollout to the gateway, over HTTP as an agent makes them. A function makes one from the
        outcome before it."""
        sampling = Sampling(purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0,
                            repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0,
                            stop_token_ids=self.chat.stop_ids, max_tokens=2048, max_context=4096, seed=1)
        client, outcomes = Dictated(), list[Outcome]()
        policy = make_policy({"folder": str(self.folder), "max_context": 4096, "enable_thinking": False,
                              "tool_parser": "qwen3_xml"}, client, HandClock())
        gateway = Gateway(HandClock())
        await gateway.start()
        ticket = await gateway.admit(policy.open("rollout", "", sampling, 60.0))
        for asked, reply in turns:
            client.reply = self.ids(reply)
            body = asked if isinstance(asked, Mapping) else asked(outcomes[-1])
            answer = await asyncio.to_thread(_post, ticket, body)
            outcomes.append(_outcome(client.prompt, answer))
        await gateway.close()
        return outcomes


def _post(ticket: Any, body: Mapping[str, Any]) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {ticket.token}"}
    asked = urllib.request.Request(f"{ticket.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=60) as response:
        return json.load(response)


def _outcome(prompt: list[int], answer: Mapping[str, Any]) -> Outcome:
    message = answer["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Outcome(prompt, message.get("content") or None, calls, reasoning or None, message)


def request(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {"model": "policy", "messages": list(messages)}
    return {**body, "tools": list(tools)} if tools else body


@pytest.fixture(scope="module")
def sides(coder_policy: Path, coder_server: Any) -> Sides:
    return Sides(coder_policy, coder_server)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_prompts(sides: Sides, name: str) -> None:
    messages, tools = CONVERSATIONS[name]
    asked = request(messages, tools)
    ours, theirs = sides.gateway(asked, "ok").prompt, sides.server(asked, "ok").prompt
    if name not in PROMPTS:
        assert _text(sides, ours) == _text(sides, theirs)
        assert ours == theirs
        return
    _, same = PROMPTS[name]
    assert ours != theirs
    assert _text(sides, sides.gateway(request(messages, same(tools)), "ok").prompt) == _text(sides, theirs)


@pytest.mark.parametrize("name", ANSWERS)
def test_replies(sides: Sides, name: str) -> None:
    asked = request([ASK], [*TOOLS, SUBMIT])
    ours, theirs = sides.gateway(asked, ANSWERS[name]), sides.server(asked, ANSWERS[name])
    if name not in REPLIES:
        assert ours.reply == theirs.reply
        return
    _, content, calls = REPLIES[name]
    assert theirs.reply == (content, calls, None)
    assert ours.reply != theirs.reply


@pytest.mark.parametrize("name", ["words", "a call", "words and a call", "words right before a call", "lines", "types",
                                  "two calls", "two calls without a line break", "line breaks after a call",
                                  "words with line breaks and spaces", "line breaks at both ends", "unicode"])
def test_the_prompt_of_the_next_turn(sides: Sides, name: str) -> None:
    ours, theirs = sides.second_turn(ANSWERS[name])
    assert _text(sides, ours) == _text(sides, theirs)


def test_calls_that_no_tools_were_offered_for(sides: Sides) -> None:
    """The server drops them; the gateway tells the agent what the policy did, with arguments as text."""
    asked, reply = request([ASK], ()), ANSWERS["words and a call"]
    assert sides.server(asked, reply).reply == ("I fix it.", [], None)
    assert sides.gateway(asked, reply).reply == (
        "I fix it.", [("edit", '{"path": "a.py", "line": "3", "text": "x"}')], None)


def test_nothing_is_listed_that_is_not_tried() -> None:
    assert PROMPTS.keys() <= CONVERSATIONS.keys()
    assert REPLIES.keys() <= ANSWERS.keys()


def _text(sides: Sides, ids: list[int]) -> str:
    return sides.chat.decode(np.array(ids, np.int32))
