"""The gateway as a program sees it, through OpenAI's own client library and through plain HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from grpo_bench.policy import Gateway, Session, Ticket
from openai import AsyncOpenAI

USER = {"role": "user", "content": "fix the function"}
CALL = ("<tool_call>\n<function=edit>\n<parameter=line>\n3\n</parameter>\n<parameter=text>\n  a\n</parameter>\n"
        "</function>\n</tool_call>")
TOOLS = [{"type": "function", "function": {"name": "edit", "parameters": {
    "type": "object", "properties": {"line": {"type": "integer"}, "text": {"type": "string"}}}}}]
CHAT = "/v1/chat/completions"
Make = Callable[..., Any]


@dataclass
class House:
    """A gateway with one rollout in it."""

    bench: Any
    gateway: Gateway
    session: Session
    ticket: Ticket
    client: AsyncOpenAI
    http: httpx.AsyncClient

    def create(self, *, messages: Any = (USER,), **fields: Any) -> Awaitable[Any]:
        return self.client.chat.completions.create(model="policy", messages=list(messages), **fields)

    async def post(self, content: bytes | None = None, **fields: Any) -> httpx.Response:
        body = {"model": "policy", "messages": [USER], **fields}
        return await self.http.post(CHAT, content=content if content is not None else json.dumps(body).encode())


@asynccontextmanager
async def house(bench: Any, *, max_retries: int = 0, request_s: float = 60.0, max_body_bytes: int = 2**20,
                **sampling: Any) -> AsyncIterator[House]:
    gateway = Gateway(bench.client.clock, max_body_bytes=max_body_bytes)
    await gateway.start()
    session = bench.open(request_s=request_s, **sampling)
    ticket = await gateway.admit(session)
    async with (AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.token, max_retries=max_retries) as client,
                httpx.AsyncClient(base_url=ticket.base_url.removesuffix("/v1"),
                                  headers={"Authorization": f"Bearer {ticket.token}"}) as http):
        try:
            yield House(bench, gateway, session, ticket, client, http)
        finally:
            await gateway.close()
            await bench.policy.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def test_an_agent_of_several_turns_with_tools(bench: Make) -> None:
    async def run() -> Any:
        b = bench(CALL, f"look\n{CALL}", "done")
        async with house(b) as h:
            messages: list[Any] = [USER]
            answers = []
            while True:
                answer = await h.create(messages=messages, tools=TOOLS)
                answers.append(answer)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return answers, h.session.close(), b.client
                for call in message.tool_calls:
                    assert json.loads(call.function.arguments) == {"line": 3, "text": "  a"}
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": "ok"})

    answers, record, client = asyncio.run(run())
    choices = [answer.choices[0] for answer in answers]
    assert [choice.finish_reason for choice in choices] == ["tool_calls", "tool_calls", "stop"]
    assert [choice.message.content for choice in choices] == [None, "look", "done"]
    assert [choice.logprobs for choice in choices] == [None] * 3
    assert (answers[0].model, answers[0].created) == ("policy", 1767323045)
    assert answers[0].usage.prompt_tokens == len(client.requests[0].ids)
    assert answers[2].usage.completion_tokens == len(client.sample("done").ids)
    [sequence] = record.sequences
    assert [len(turn.sampled_ids) for turn in sequence.turns] == [answer.usage.completion_tokens for answer in answers]
    assert record.counters == {}


def test_log_probabilities_in_openais_form(bench: Make) -> None:
    async def run() -> Any:
        b = bench()
        sample = b.client.sample("é")
        sample.log_probabilities[1] = np.nan
        b.client.replies = [sample]
        async with house(b) as h:
            answer = await h.create(logprobs=True)
            return answer.choices[0].logprobs.content

    content = asyncio.run(run())
    assert [item.logprob for item in content] == [-1.0, -9999.0, -3.0]
    assert content[-1].token == "<|im_end|>"
    assert [item.bytes for item in content] == [None, None, list(b"<|im_end|>")]


def test_a_full_context_is_an_empty_reply_with_finish_length(bench: Make) -> None:
    async def run() -> Any:
        async with house(bench(), max_context=5) as h:
            answer = await h.create()
            return answer, h.session.close()

    answer, record = asyncio.run(run())
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "")
    assert answer.usage.completion_tokens == 0
    assert record.truncated


def test_models_and_health(bench: Make) -> None:
    async def run() -> Any:
        async with house(bench()) as h:
            async with httpx.AsyncClient(base_url=h.ticket.base_url) as stranger:
                health = await stranger.get(h.ticket.base_url.removesuffix("/v1") + "/health")
            return [model.id async for model in h.client.models.list()], health.json()

    assert asyncio.run(run()) == (["policy"], {"status": "ok"})


def test_refusals_reach_the_client_as_openais_errors(bench: Make) -> None:
    async def run() -> Any:
        b = bench()
        async with house(b) as h:
            with pytest.raises(openai.BadRequestError) as different:
                await h.create(temperature=0.7)
            with pytest.raises(openai.BadRequestError) as streamed:
                await h.create(stream=True)
            with pytest.raises(openai.NotFoundError) as unknown:
                await h.client.chat.completions.create(model="gpt", messages=[])
            with pytest.raises(openai.BadRequestError) as empty:
                await h.create(messages=[])
            return different.value, streamed.value, unknown.value, empty.value, b.client.requests

    different, streamed, unknown, empty, requests = asyncio.run(run())
    assert (different.param, different.code) == ("temperature", "unsupported_value")
    assert different.type == "invalid_request_error"
    assert (streamed.param, unknown.param, empty.param) == ("stream", "model", "messages")
    assert requests == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": NaN}', b"[" * 100_000])
def test_bodies_that_are_no_json_object(bench: Make, body: bytes) -> None:
    async def run() -> Any:
        async with house(bench()) as h:
            return await h.post(content=body)

    response = asyncio.run(run())
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_bodies_that_are_too_large(bench: Make) -> None:
    async def run() -> Any:
        async with house(bench(), max_body_bytes=1000) as h:
            return await h.post(content=b" " * 2000)

    response = asyncio.run(run())
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")


def test_unknown_addresses_and_methods(bench: Make) -> None:
    async def run() -> Any:
        async with house(bench()) as h:
            return await h.http.post("/v1/completions"), await h.http.get(CHAT)

    missing, method = asyncio.run(run())
    assert (missing.status_code, method.status_code) == (404, 405)
    assert "/v1/completions" in missing.json()["error"]["message"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic {token}"])
def test_without_its_token_nobody_is_let_in(bench: Make, header: str | None) -> None:
    async def run() -> Any:
        async with house(bench()) as h, httpx.AsyncClient() as stranger:
            headers = {"Authorization": header.format(token=h.ticket.token)} if header is not None else {}
            return [await stranger.post(f"{h.ticket.base_url}/chat/completions", json={}, headers=headers),
                    await stranger.get(f"{h.ticket.base_url}/models", headers=headers)]

    for response in asyncio.run(run()):
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_dismissed_rollout_is_shut_out(bench: Make) -> None:
    async def run() -> Any:
        async with house(bench("ok")) as h:
            await h.create()
            await h.gateway.dismiss(h.ticket)
            await h.gateway.dismiss(h.ticket)
            with pytest.raises(openai.AuthenticationError):
                await h.create()

    asyncio.run(run())


def test_each_rollout_talks_to_its_own_session(bench: Make) -> None:
    async def run() -> Any:
        b = bench("a", "b")
        async with house(b) as h:
            other = b.open("r1", temperature=0.1)
            ticket = await h.gateway.admit(other)
            async with AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.token) as client:
                first = await client.chat.completions.create(
                    model="policy", messages=[{"role": "user", "content": "hi"}], temperature=0.1)
            second = await h.create(temperature=1.0)
            return first, second, other.close(), h.session.close()

    first, second, other, mine = asyncio.run(run())
    assert [answer.choices[0].message.content for answer in (first, second)] == ["a", "b"]
    assert len(other.sequences) == len(mine.sequences) == 1


def test_a_socket_serves_its_own_rollout_only(bench: Make, tmp_path: Path) -> None:
    async def run() -> Any:
        b = bench("a", "b")
        gateway = Gateway(b.client.clock)
        await gateway.start(tcp=False)
        tickets = [await gateway.admit(b.open(f"r{i}"), tmp_path / f"{i}.sock") for i in range(2)]

        async def ask(socket: int, token: int) -> int:
            transport = httpx.AsyncHTTPTransport(uds=str(tickets[socket].socket))
            async with httpx.AsyncClient(transport=transport) as client:
                response = await client.post(
                    f"{tickets[token].base_url}/chat/completions", json={"model": "policy", "messages": [USER]},
                    headers={"Authorization": f"Bearer {tickets[token].token}"})
                return response.status_code

        statuses = [await ask(0, 0), await ask(1, 1), await ask(0, 1)]
        await gateway.dismiss(tickets[0])
        left = sorted(os.listdir(tmp_path))
        with pytest.raises(httpx.ConnectError):
            await ask(0, 0)
        await gateway.close()
        return statuses, left, os.listdir(tmp_path)

    assert asyncio.run(run()) == ([200, 200, 401], ["1.sock"], [])


def test_a_client_that_disconnects_aborts_its_call(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late")
        async with house(b) as h:
            call = asyncio.ensure_future(h.create())
            await until(lambda: b.client.requests)
            call.cancel()
            await until(lambda: b.client.aborted)
            return b.client, h.session.close()

    client, record = asyncio.run(run())
    assert client.aborted == [client.requests[0].id]
    assert record.sequences == ()


def test_a_client_that_times_out_and_retries_leaves_one_turn(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late", "in time")
        async with house(b, max_retries=1) as h:
            call = asyncio.ensure_future(h.create(timeout=1.0))
            await until(lambda: b.client.requests)
            b.client.replies = ["in time"]
            answer = await call
            await until(lambda: b.client.aborted)
            return b.client, answer, h.session.close()

    client, answer, record = asyncio.run(run())
    assert answer.choices[0].message.content == "in time"
    assert client.aborted == [client.requests[0].id]
    assert [request.stream for request in client.requests] == ["r0/0", "r0/0"]
    [sequence] = record.sequences
    assert [turn.sampled_ids.tolist() for turn in sequence.turns] == [client.sample("in time").ids.tolist()]


def test_of_two_concurrent_calls_the_newer_wins_and_the_older_is_not_retried(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "old")
        async with house(b, max_retries=2) as h:
            older = asyncio.ensure_future(h.create())
            await until(lambda: b.client.requests)
            b.client.replies = [0.01, "new"]
            newer = await h.create(messages=[{"role": "user", "content": "other"}])
            with pytest.raises(openai.ConflictError) as caught:
                await older
            return b.client, newer, caught.value, h.session.close()

    client, newer, error, record = asyncio.run(run())
    assert newer.choices[0].message.content == "new"
    assert error.code == "superseded"
    assert len(client.requests) == 2
    assert client.aborted == [client.requests[0].id]
    assert [len(sequence.turns) for sequence in record.sequences] == [1]


def test_a_call_sent_twice_keeps_the_second_reply(bench: Make) -> None:
    async def run() -> Any:
        b = bench("first", "second")
        async with house(b) as h:
            await h.create()
            await h.create()
            return b.client, h.session.close()

    client, record = asyncio.run(run())
    [sequence] = record.sequences
    assert [turn.sampled_ids.tolist() for turn in sequence.turns] == [client.sample("second").ids.tolist()]


def test_a_reply_that_cannot_be_written_is_taken_back(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(*_: Any) -> None:
        raise ConnectionResetError("peer is gone")

    async def run() -> Any:
        b = bench("lost", "found")
        async with house(b) as h:
            with monkeypatch.context() as patch:
                patch.setattr("aiohttp.web.Response.write_eof", lost)
                with pytest.raises(openai.APIConnectionError):
                    await h.create()
            answer = await h.create()
            return b.client, answer, h.session.close()

    client, answer, record = asyncio.run(run())
    assert answer.choices[0].message.content == "found"
    [sequence] = record.sequences
    assert [turn.sampled_ids.tolist() for turn in sequence.turns] == [client.sample("found").ids.tolist()]
    assert record.counters == {"lost_replies": 1}


def test_a_passed_deadline_and_a_failing_generator_are_server_errors_that_are_not_retried(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late")
        async with house(b, max_retries=2, request_s=0.05) as h:
            with pytest.raises(openai.InternalServerError) as late:
                await h.create()
            b.client.replies = [RuntimeError("engine died")]
            with pytest.raises(openai.InternalServerError) as failed:
                await h.create()
            return late.value, failed.value, b.client, h.session.close()

    late, failed, client, record = asyncio.run(run())
    assert (late.status_code, late.code) == (504, "deadline_exceeded")
    assert (failed.status_code, failed.code) == (500, "generator_failed")
    assert "engine died" in str(failed)
    assert len(client.requests) == 2
    assert repr(record.error) == "RuntimeError('engine died')"


def test_a_call_in_flight_when_the_rollout_ends_is_given_up(bench: Make) -> None:
    async def run() -> Any:
        b = bench(30, "late")
        async with house(b) as h:
            call = asyncio.ensure_future(h.create())
            await until(lambda: b.client.requests)
            record = h.session.close()
            with pytest.raises(openai.ConflictError):
                await call
            return record

    assert asyncio.run(run()).sequences == ()
