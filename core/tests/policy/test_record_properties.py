"""Whatever the policy samples and the agent does, the record holds exactly the ids that were sampled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from grpo_bench.contract import FinishReason, Sample, Sampling
from grpo_bench.contract.values import Ids
from grpo_bench.policy import ChatFormat, Policy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MAX_CONTEXT = 600
MARKUP = ["<tool_call>", "\n<function=f>\n", "<parameter=a>\n", "\n</parameter>\n", "</function>\n</tool_call>",
          "</think>", "<|im_end|>", "é", "\U0001f600", " the function", "\n", "x"]
CALL = "<tool_call>\n<function=f>\n<parameter=a>\n {} \n</parameter>\n</function>\n</tool_call>"

replies = st.one_of(
    st.lists(st.integers(0, 339), max_size=12),
    st.lists(st.sampled_from(MARKUP), max_size=8).map("".join),
    st.sampled_from(["", "1", "[1,2]", "é", "  "]).map(CALL.format),
)
moves = st.sampled_from(["append", "append", "append", "again", "condense"])
actions = st.lists(st.tuples(replies, st.booleans(), moves), min_size=1, max_size=6)


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def now_utc(self) -> str:
        return ""


class Client:
    """Answers with the given ids or with text tokenised in two halves, and remembers both sides."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self.next: tuple[Any, bool] = ("", True)
        self.seen: list[tuple[list[int], list[int], list[float]]] = []

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        reply, stops = self.next
        if isinstance(reply, str):
            half = len(reply) // 2
            found = self.chat.encode(reply[:half]).tolist() + self.chat.encode(reply[half:]).tolist()
        else:
            found = list(reply)
        found = (found + [2] * stops)[:sampling.max_tokens]
        values = -np.random.default_rng(len(self.seen)).random(len(found), np.float32)
        self.seen.append((ids.tolist(), found, values.tolist()))
        finish = FinishReason.STOP if stops else FinishReason.LENGTH
        return Sample(np.array(found, np.int32), values, finish, ((len(found), len(self.seen)),) if found else ())

    async def abort(self, request_id: str) -> None:
        raise AssertionError("nothing was cancelled")

    async def release(self, rollout_id: str) -> None:
        pass


async def play(chat: ChatFormat, script: list[tuple[Any, bool, str]]) -> tuple[Any, list[Any]]:
    """Run the script; the record, and the turns it should hold, in the order in which they were sampled."""
    client = Client(chat)
    sampling = Sampling("train", 1.0, 1.0, -1, 0.0, 1.0, 0.0, 0.0, (2,), 40, MAX_CONTEXT, 0)  # type: ignore[arg-type]
    session = Policy(chat, MAX_CONTEXT, client, Clock()).open("r", "a", sampling, 5.0)
    messages: list[Any] = [{"role": "user", "content": "fix the function"}]
    expected: list[Any] = []
    for reply, stops, action in script:
        if action == "condense":
            messages = [{"role": "user", "content": f"condensed {len(expected)}"}, *messages[2:]]
        client.next = (reply, stops)
        before = len(client.seen)
        answer = await session.chat(messages, [])
        expected += client.seen[before:]
        if action == "again":
            before = len(client.seen)
            answer = await session.chat(messages, [])
            if client.seen[before:]:
                expected[-1:] = client.seen[before:]
        messages = [*messages, answer.message, {"role": "tool", "content": f"ok {len(expected)}"}]
    return session.close(), expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=actions, thinking=st.booleans())
def test_the_record_is_what_was_sampled(folder: Path, thinking_folder: Path, script: list[Any], thinking: bool) -> None:
    record, expected = asyncio.run(play(_format(thinking_folder if thinking else folder, thinking), script))
    recorded: list[Any] = []
    for sequence in record.sequences:
        assert len(sequence.ids) <= MAX_CONTEXT
        ids: list[int] = []
        for turn in sequence.turns:
            ids += turn.context_ids.tolist()
            recorded.append((list(ids), turn.sampled_ids.tolist(), turn.log_probabilities.tolist()))
            ids += turn.sampled_ids.tolist()
            assert sum(count for count, _ in turn.versions) == len(turn.sampled_ids)
        assert sequence.ids.tolist() == ids
        sampled = np.concatenate([turn.sampled_ids for turn in sequence.turns])
        assert sequence.ids[sequence.token_mask].tolist() == sampled.tolist()
        assert not sequence.log_probabilities[~sequence.token_mask].any()
    assert sorted(recorded) == sorted(expected)
    assert record.counters.get("split_sequences", 0) == max(0, len(record.sequences) - 1)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=st.lists(st.tuples(st.one_of(
    st.lists(st.integers(3, 258), max_size=12), st.sampled_from(["", "[1,2]", "é \U0001f600", "  x"]).map(CALL.format)),
    st.booleans(), st.just("append")), min_size=1, max_size=6))
def test_replies_the_template_repeats_never_split(folder: Path, script: list[Any]) -> None:
    """Any bytes, characters cut in two included, and any well-formed call: one sequence."""
    record, expected = asyncio.run(play(_format(folder, False), script))
    assert len(record.sequences) == 1
    assert [len(turn.sampled_ids) for turn in record.sequences[0].turns] == [len(found) for _, found, _ in expected]


_formats: dict[Path, ChatFormat] = {}


def _format(folder: Path, thinking: bool) -> ChatFormat:
    if folder not in _formats:
        _formats[folder] = ChatFormat(folder, thinking)
    return _formats[folder]
