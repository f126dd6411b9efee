"""One rollout's talk with the policy: what the generator sees, what the agent sees, what the record keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grpo_bench.contract import DeadlineExceeded, FinishReason, PluginError, Sample, TokenSequence
from grpo_bench.policy import CallSuperseded, ConversationError, Session, TurnLimit

USER = {"role": "user", "content": "fix the function"}
CALL = ("<tool_call>\n<function=edit>\n<parameter=line>\n3\n</parameter>\n<parameter=text>\n  a  =  [1,2]\n"
        "</parameter>\n</function>\n</tool_call>")
TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {
    "type": "object", "properties": {"line": {"type": "integer"}, "text": {"type": "string"}}}}}]
Make = Callable[..., Any]


async def converse(session: Session, turns: int, *, tools: list[dict[str, Any]] = TOOLS) -> list[Any]:
    """An agent's loop: append each reply, answer its calls."""
    messages: list[Any] = [USER]
    replies = []
    for turn in range(turns):
        reply = await session.chat(messages, tools)
        replies.append(reply)
        messages.append(reply.message)
        if reply.tool_calls:
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in reply.tool_calls]
        else:
            messages.append({"role": "user", "content": f"go on {turn}"})
    return replies


def check_sequence(sequence: TokenSequence) -> None:
    """Ids, mask and log-probabilities belong together."""
    assert len(sequence.ids) == len(sequence.token_mask) == len(sequence.log_probabilities)
    sampled = np.concatenate([turn.sampled_ids for turn in sequence.turns])
    assert sequence.ids[sequence.token_mask].tolist() == sampled.tolist()
    assert not sequence.log_probabilities[~sequence.token_mask].any()


def test_turns_extend_each_other_with_the_ids_as_sampled(bench: Make) -> None:
    b = bench(CALL, f"look\n{CALL}\n{CALL}", "done")
    session = b.open()
    replies = asyncio.run(converse(session, 3))
    record = session.close()

    assert [len(reply.tool_calls) for reply in replies] == [1, 2, 0]
    assert dict(replies[0].tool_calls[0].arguments) == {"line": "3", "text": "  a  =  [1,2]"}
    assert replies[1].message["tool_calls"][1] == {
        "id": "call_1_1", "type": "function",
        "function": {"name": "edit", "arguments": '{"line": 3, "text": "  a  =  [1,2]"}'}}
    assert replies[1].text == "look"
    assert [reply.truncated for reply in replies] == [False] * 3

    [sequence] = record.sequences
    check_sequence(sequence)
    assert [turn.sampled_ids.tolist() for turn in sequence.turns] == [
        b.client.sample(text).ids.tolist() for text in (CALL, f"look\n{CALL}\n{CALL}", "done")]
    text = session.format.decode(sequence.ids)
    assert session.format.encode(text).tolist() != sequence.ids.tolist()
    for index, request in enumerate(b.client.requests):
        before = [part for turn in sequence.turns[:index] for part in (turn.context_ids, turn.sampled_ids)]
        assert request.ids.tolist() == np.concatenate([*before, sequence.turns[index].context_ids]).tolist()
        assert request.stream == f"r0/{index}"
        assert (request.affinity, request.deadline_s) == ("group-0", 60.0)
    assert sequence.turns[0].versions == ((len(sequence.turns[0].sampled_ids), 7),)
    assert record.counters == {}
    assert not record.truncated


def test_every_request_has_its_own_id_and_the_stamped_sampling(bench: Make) -> None:
    b = bench("a", "b", "c", "d")
    sessions = [b.open(f"r{i}", temperature=0.1, top_p=0.95) for i in range(2)]
    for session in sessions:
        asyncio.run(converse(session, 2))
    assert len({request.id for request in b.client.requests}) == 4
    assert {request.sampling for request in b.client.requests} == {sessions[0].sampling}


def test_a_prompt_that_does_not_extend_the_record_starts_a_sequence(bench: Make) -> None:
    async def run() -> Any:
        b = bench("one", "two", "three", "four")
        session = b.open()
        first = [USER]
        one = await session.chat(first, [])
        condensed = [{"role": "user", "content": "fix the functioN"}]
        await session.chat(condensed, [])
        more = [*first, one.message, {"role": "user", "content": "go on"}]
        three = await session.chat(more, [])
        await session.chat([*more, three.message, {"role": "user", "content": "and on"}], [])
        return session.close()

    record = asyncio.run(run())
    assert [len(sequence.turns) for sequence in record.sequences] == [3, 1]
    assert record.counters == {"split_sequences": 1}
    for sequence in record.sequences:
        check_sequence(sequence)


def test_a_split_takes_over_the_recorded_ids_as_far_as_the_text_agrees(bench: Make) -> None:
    async def run() -> Any:
        b = bench("the function", "the value", "the text")
        session = b.open()
        messages: list[Any] = [USER]
        messages += [(await session.chat(messages, [])).message, {"role": "user", "content": "go on"}]
        messages += [(await session.chat(messages, [])).message, {"role": "user", "content": "go on"}]
        changed = [*messages[:3], {"role": "assistant", "content": "condensed"}, *messages[4:]]
        await session.chat(changed, [])
        return session.close()

    first, second = asyncio.run(run()).sequences
    kept = np.concatenate([first.turns[0].context_ids, first.turns[0].sampled_ids, first.turns[1].context_ids])
    assert second.turns[0].context_ids[:len(kept)].tolist() == kept.tolist()
    assert second.token_mask.sum() == len(second.turns[0].sampled_ids)


def test_a_template_that_drops_thinking_splits(bench: Make, thinking_folder: Path) -> None:
    b = bench("so\n</think>\n\nlook", "but\n</think>\n\ndone", folder=thinking_folder, enable_thinking=True)
    session = b.open()
    replies = asyncio.run(converse(session, 2, tools=[]))
    record = session.close()
    assert [reply.message["reasoning_content"] for reply in replies] == ["so", "but"]
    assert [reply.text for reply in replies] == ["look", "done"]
    assert record.counters == {"split_sequences": 1}
    assert [len(sequence.turns) for sequence in record.sequences] == [1, 1]


def test_thinking_between_tool_calls_is_kept(bench: Make, thinking_folder: Path) -> None:
    b = bench(f"so\n</think>\n\nlook\n{CALL}", f"hm\n</think>\n\n{CALL}", "x\n</think>\n\nend", folder=thinking_folder,
              enable_thinking=True)
    session = b.open()
    asyncio.run(converse(session, 3))
    record = session.close()
    assert [len(sequence.turns) for sequence in record.sequences] == [3]


def test_a_malformed_call_is_counted_and_extends(bench: Make) -> None:
    b = bench(CALL[:-4], "done")
    session = b.open()
    replies = asyncio.run(converse(session, 2))
    record = session.close()
    assert (replies[0].tool_calls, replies[0].text) == ((), CALL[:-4])
    assert "tool_calls" not in replies[0].message
    assert record.counters == {"malformed_calls": 1}
    assert len(record.sequences) == 1


def test_arguments_rewritten_by_the_agent_are_rendered_as_it_sent_them(bench: Make) -> None:
    async def run() -> Any:
        b = bench(CALL, "done")
        session = b.open()
        message = (await session.chat([USER], TOOLS)).message
        call = message["tool_calls"][0]
        changed = {**message, "tool_calls": [{**call, "function": {"name": "edit", "arguments": '{"line": 4}'}}]}
        await session.chat([USER, changed], TOOLS)
        return session.close(), session.format.decode(b.client.requests[1].ids)

    record, text = asyncio.run(run())
    assert record.counters == {"split_sequences": 1}
    assert "<parameter=line>\n4\n</parameter>\n</function>" in text


def test_replies_are_cut_to_the_context_and_no_room_is_no_request(bench: Make) -> None:
    async def run() -> Any:
        b = bench("a" * 50, "b" * 50)
        session = b.open(max_context=100)
        size = len(session.format.encode(session.format.render([USER], [])))
        first = await session.chat([USER], [])
        second = await session.chat([USER, first.message, {"role": "user", "content": "ab"}], [])
        third = await session.chat([USER, first.message, {"role": "user", "content": "ab"}, second.message], [])
        return size, (first, second, third), session.close(), b.client

    size, replies, record, client = asyncio.run(run())
    assert [reply.truncated for reply in replies] == [False, True, True]
    assert (replies[2].text, replies[2].message) == ("", {"role": "assistant", "content": ""})
    assert client.requests[0].sampling.max_tokens == 100 - size
    assert len(client.requests) == 2
    assert [len(sequence.ids) for sequence in record.sequences] == [100]
    assert record.truncated
    assert record.counters == {}


def test_the_policys_own_context_bounds_too(bench: Make) -> None:
    b = bench(max_context=3)
    session = b.open()
    assert asyncio.run(session.chat([USER], [])).truncated
    assert session.close().truncated


def test_a_reply_cut_by_its_own_limit_leaves_the_rollout_untruncated(bench: Make) -> None:
    b = bench(CALL, "done")
    session = b.open(max_tokens=20)
    replies = asyncio.run(converse(session, 2))
    record = session.close()
    assert [reply.truncated for reply in replies] == [True, False]
    assert replies[0].tool_calls == ()
    assert not record.truncated
    assert record.counters == {}
    [sequence] = record.sequences
    assert sequence.turns[1].context_ids[0] == 2


def test_log_probabilities_that_are_not_finite_are_kept_and_counted(bench: Make) -> None:
    b = bench()
    sample = b.client.sample("abc")
    sample.log_probabilities[[0, 2]] = np.nan, -np.inf
    b.client.replies = [sample]
    session = b.open()
    asyncio.run(session.chat([USER], []))
    record = session.close()
    assert record.counters == {"nan_log_probabilities": 2}
    assert np.isnan(record.sequences[0].turns[0].log_probabilities[0])


def bad_samples() -> list[Sample]:
    ids = np.array([5, 6, 2], np.int32)
    good = Sample(ids, np.zeros(3, np.float32), FinishReason.STOP, ((3, 0),))
    return [replace(good, log_probabilities=np.zeros(2, np.float32)), replace(good, versions=((2, 0),)),
            replace(good, ids=ids[None]), replace(good, finish=FinishReason.ABORT),
            Sample(np.full(401, 5, np.int32), np.zeros(401, np.float32), FinishReason.LENGTH, ((401, 0),))]


@pytest.mark.parametrize("sample", bad_samples())
def test_a_sample_that_does_not_fit_together_is_the_generators_error(bench: Make, sample: Sample) -> None:
    b = bench(sample)
    session = b.open()
    with pytest.raises(PluginError) as caught:
        asyncio.run(session.chat([USER], []))
    assert caught.value.boundary.role == "generator"
    record = session.close()
    assert record.sequences == ()
    assert record.error is caught.value


def test_a_deadline_aborts_the_request(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late", "in time")
        session = b.open(request_s=0.01)
        with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
            await session.chat([USER], [])
        await b.policy.close()
        b.client.replies = ["in time"]
        reply = await session.chat([USER], [])
        return b.client, reply, session.close()

    client, reply, record = asyncio.run(run())
    assert client.aborted == [client.requests[0].id]
    assert reply.text == "in time"
    assert [len(sequence.turns) for sequence in record.sequences] == [1]
    assert [request.stream for request in client.requests] == ["r0/0", "r0/0"]
    assert record.error is None


def test_a_generator_that_raises_is_told_to_abort_and_keeps_its_error(bench: Make) -> None:
    async def run() -> Any:
        b = bench(RuntimeError("lost"))
        session = b.open()
        with pytest.raises(RuntimeError, match="lost"):
            await session.chat([USER], [])
        await b.policy.close()
        return b.client, session.close()

    client, record = asyncio.run(run())
    assert client.aborted == [client.requests[0].id]
    assert repr(record.error) == "RuntimeError('lost')"


def test_a_full_context_after_an_error_is_no_error(bench: Make) -> None:
    session = bench(RuntimeError("lost")).open(max_context=60)
    with pytest.raises(RuntimeError, match="lost"):
        asyncio.run(session.chat([USER], []))
    assert asyncio.run(session.chat([{"role": "user", "content": "7" * 100}], [])).truncated
    record = session.close()
    assert (record.error, record.truncated) == (None, True)


def test_a_cancelled_call_leaves_nothing(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late")
        session = b.open()
        call = asyncio.ensure_future(session.chat([USER], []))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await b.policy.close()
        return b.client, session.close()

    client, record = asyncio.run(run())
    assert client.aborted == [client.requests[0].id]
    assert record.sequences == ()
    assert record.counters == {"aborted_calls": 1}


def test_the_newer_of_two_calls_wins(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "new")
        session = b.open()
        older = asyncio.ensure_future(session.chat([USER], []))
        await asyncio.sleep(0)
        newer = await session.chat([USER], [])
        with pytest.raises(CallSuperseded):
            await older
        await b.policy.close()
        return b.client, newer, session.close(), older

    client, newer, record, older = asyncio.run(run())
    assert newer.text == "new"
    assert client.aborted == [client.requests[0].id]
    assert [len(sequence.turns) for sequence in record.sequences] == [1]
    assert not older.cancelled()


def test_a_call_asked_again_replaces_the_turn_it_repeats(bench: Make) -> None:
    async def run() -> Any:
        b = bench("first", "second", "third", "fourth")
        session = b.open()
        first = await session.chat([USER], [])
        more = [USER, first.message, {"role": "user", "content": "go on"}]
        await session.chat(more, [])
        third = await session.chat(more, [])
        await session.chat([*more, third.message], [])
        return b.client, session.close()

    client, record = asyncio.run(run())
    [sequence] = record.sequences
    assert [turn.sampled_ids.tolist() for turn in sequence.turns] == [
        client.sample(text).ids.tolist() for text in ("first", "third", "fourth")]
    assert [request.stream for request in client.requests] == ["r0/0", "r0/1", "r0/1", "r0/2"]
    assert record.counters == {"retried_turns": 1}


def test_a_first_turn_asked_again_leaves_one_sequence(bench: Make) -> None:
    b = bench("first", "second")
    session = b.open()
    asyncio.run(session.chat([USER], []))
    asyncio.run(session.chat([USER], []))
    record = session.close()
    assert [len(sequence.turns) for sequence in record.sequences] == [1]
    assert record.counters == {"retried_turns": 1}


def test_a_lost_reply_is_taken_back(bench: Make) -> None:
    async def run() -> Any:
        b = bench("one", "two")
        session = b.open()
        one = await session.complete([USER], [])
        two = await session.complete([USER, one.reply.message, USER], [])
        session.retract(one)
        session.retract(two)
        session.retract(two)
        return session.close()

    record = asyncio.run(run())
    assert [len(sequence.turns) for sequence in record.sequences] == [1]
    assert record.counters == {"lost_replies": 1}


def test_closing_cancels_a_call_in_flight_and_admits_no_more(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late")
        session = b.open()
        call = asyncio.ensure_future(session.chat([USER], []))
        await asyncio.sleep(0)
        record = session.close()
        with pytest.raises(CallSuperseded):
            await call
        with pytest.raises(CallSuperseded, match="ended"):
            await session.chat([USER], [])
        return record

    assert asyncio.run(run()).sequences == ()


def test_times_are_split_between_generator_and_environment(bench: Make) -> None:
    async def run() -> Any:
        b = bench(0.001, "one", 0.002, "two")
        session = b.open()
        one = await session.chat([USER], [])
        b.client.clock.now += 3.0
        await session.chat([USER, one.message, USER], [])
        b.client.clock.now += 4.0
        return session.close()

    record = asyncio.run(run())
    turns = record.sequences[0].turns
    assert [turn.generate_s for turn in turns] == pytest.approx([0.001, 0.002])
    assert [turn.environment_s for turn in turns] == pytest.approx([3.0, 4.0])
    assert record.generate_s == pytest.approx(0.003)


def test_text_parts_missing_content_and_developer_messages_are_understood(bench: Make) -> None:
    b = bench("ok")
    session = b.open()
    asyncio.run(session.chat([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}], []))
    assert session.format.decode(b.client.requests[0].ids).startswith(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n<tool_call>")


@pytest.mark.parametrize(("messages", "match"), [
    ([], "at least one"),
    ([{"role": "robot", "content": ""}], r"messages\[0\].*robot"),
    ([{"content": ""}], "role None"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], "image_url"),
    ([{"role": "user", "content": 3}], "content"),
    ([{"role": "assistant", "tool_calls": [{"id": "x"}]}], r"function\.name"),
    ([{"role": "assistant", "tool_calls": 3}], r"messages\[0\].*list"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}], "JSON object"),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], "JSON object"),
])
def test_conversations_that_cannot_be_rendered_say_where(bench: Make, messages: list[Any], match: str) -> None:
    session = bench().open()
    with pytest.raises(ConversationError, match=match):
        asyncio.run(session.chat(messages, []))
    assert session.close().error is None


def test_replies_are_granted_up_to_the_limit_and_asking_again_uses_one_up(bench: Make) -> None:
    """Whoever asked again until a reply pleases would choose among samples."""
    b = bench("one", "other", "third")
    session = b.policy.open("r0", "group-0", b.open().sampling, 60.0, 2)
    assert session.asked is None

    async def run() -> None:
        await session.chat([USER], TOOLS)
        latest = await session.complete([USER], TOOLS)
        assert session.replies == 2
        with pytest.raises(TurnLimit, match="has had its 2 replies"):
            await session.chat([USER], TOOLS)
        session.retract(latest)
        assert session.replies == 1
        await session.chat([USER], TOOLS)

    asyncio.run(run())
    assert session.asked == {"messages": [USER], "tools": TOOLS}
    assert [turn.sampled_ids.tolist() for turn in session.close().sequences[0].turns] == [
        b.client.sample("third").ids.tolist()]
