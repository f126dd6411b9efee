"""Which requests are answered, and what the refused ones are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from grpo_bench.policy import Session
from grpo_bench.policy.openai_form import RequestError, read_body, read_request

TOOLS = [{"type": "function", "function": {"name": "edit"}}]


@pytest.fixture
def session(bench: Callable[..., Any]) -> Session:
    return bench().open()


def ask(session: Session, fields: dict[str, Any]) -> Any:
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], **fields}
    return read_request(read_body(json.dumps(body).encode()), session, "policy")


@pytest.mark.parametrize("fields", [
    {"temperature": 1, "top_p": 1.0, "presence_penalty": 0, "frequency_penalty": 0.0, "n": 1, "seed": 11},
    {"top_k": -1, "min_p": 0, "repetition_penalty": 1, "stop_token_ids": [2, 0]},
    {"temperature": None, "top_p": None, "max_tokens": None, "stop": None, "tools": None, "logprobs": None},
    {"max_tokens": 400}, {"max_completion_tokens": 400}, {"stop": []}, {"tool_choice": "auto"}, {"logit_bias": {}},
    {"top_logprobs": 0}, {"response_format": {"type": "text"}}, {"user": "me"}, {"stream": False},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"parallel_tool_calls": True}, {"tool_choice": "none"},
])
def test_what_equals_the_settled_values_is_fine(session: Session, fields: dict[str, Any]) -> None:
    request = ask(session, fields)
    assert (request.messages, request.tools, request.logprobs) == ([{"role": "user", "content": "hi"}], [], False)


@pytest.mark.parametrize(("field", "value", "given", "settled"), [
    ("temperature", 0.7, "0.7", "1.0"), ("temperature", True, "true", "1.0"), ("temperature", "1.0", '"1.0"', "1.0"),
    ("top_p", 0.9, "0.9", "1.0"), ("top_k", 0, "0", "-1"), ("min_p", 0.1, "0.1", "0.0"),
    ("repetition_penalty", 1.1, "1.1", "1.0"), ("presence_penalty", 1, "1", "0.0"),
    ("frequency_penalty", -1, "-1", "0.0"), ("max_tokens", 401, "401", "400"), ("max_tokens", 399, "399", "400"),
    ("max_completion_tokens", 7, "7", "400"), ("seed", 12, "12", "11"), ("stop_token_ids", [5], "[5]", "[2, 0]"),
    ("stop", ["\n"], r"\n", "[]"), ("stop", "x", "x", "[]"), ("n", 2, "2", "1"),
    ("logit_bias", {"5": 1}, '"5"', "{}"),
    ("top_logprobs", 3, "3", "0"), ("min_tokens", 4, "4", "0"), ("ignore_eos", True, "true", "false"),
    ("response_format", {"type": "json_object"}, "json_object", "text"),
    ("tool_choice", "required", "required", "auto"),
    ("parallel_tool_calls", False, "false", "true"), ("reasoning_effort", "high", "high", "null"),
    ("chat_template_kwargs", {"enable_thinking": True}, "true", "false"), ("functions", [{}], "[{}]", "[]"),
])
def test_what_differs_is_refused_with_both_values(session: Session, field: str, value: Any, given: str,
                                                  settled: str) -> None:
    with pytest.raises(RequestError) as caught:
        ask(session, {field: value})
    error = caught.value.body["error"]
    assert (caught.value.status, error["param"], error["type"]) == (400, field, "invalid_request_error")
    assert given in error["message"]
    assert settled in error["message"].split(given, 1)[1]


@pytest.mark.parametrize(("fields", "status", "param", "match"), [
    ({"stream": True}, 400, "stream", "stream = true is not supported"),
    ({"model": "gpt-4"}, 404, "model", "'gpt-4' does not exist.*'policy'"),
    ({"model": None}, 404, "model", "None"),
    ({"temprature": 1.0}, 400, "temprature", "unknown field"),
    ({"messages": "hi"}, 400, "messages", "list"),
    ({"messages": ["hi"]}, 400, "messages", "list"),
    ({"tools": [{"type": "retrieval"}]}, 400, "tools", r"tools\[0\]"),
    ({"tools": TOOLS, "tool_choice": "none"}, 400, "tool_choice", "auto"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, 400, "tool_choice", "auto"),
    ({"logprobs": 5}, 400, "logprobs", "true or false"),
])
def test_requests_that_are_refused(session: Session, fields: dict[str, Any], status: int, param: str,
                                   match: str) -> None:
    with pytest.raises(RequestError, match=match) as caught:
        ask(session, fields)
    assert (caught.value.status, caught.value.body["error"]["param"]) == (status, param)
