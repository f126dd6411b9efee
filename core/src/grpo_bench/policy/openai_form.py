"""OpenAI's chat completion form: what a request may say, and how replies and errors are written.

The profile owns sampling. A sampling field that a request leaves out (or sends as null) is stamped, one that equals
the stamped value is fine, any other is refused with both values. A field nobody here reads is refused as well, since
ignoring it would quietly give the agent something else than it asked for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import Sampling
from .session import Completion, Session

_NEUTRAL: dict[str, Any] = {
    "n": 1, "best_of": 1, "stop": [], "logit_bias": {}, "top_logprobs": 0, "min_tokens": 0, "length_penalty": 1.0,
    "typical_p": 1.0, "use_beam_search": False, "ignore_eos": False, "bad_words": [], "stream": False,
    "parallel_tool_calls": True, "response_format": {"type": "text"}, "modalities": ["text"], "stream_options": {},
    "audio": {}, "functions": [], "function_call": "auto", "prediction": {}, "web_search_options": {},
}
"""Fields that would change what is sampled or how it is answered, with the only value they may have."""

_HARMLESS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})
_READ = frozenset({"model", "messages", "tools", "tool_choice", "logprobs", "chat_template_kwargs"})
_UNLIKELY = -9999.0
"""Stands for a log-probability that JSON cannot write."""


class RequestError(Exception):
    """A request that is answered with an error in OpenAI's form."""

    def __init__(self, message: str, *, status: int = 400, kind: str = "invalid_request_error",
                 param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The part of a request that is not settled beforehand."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    logprobs: bool


def read_body(data: bytes) -> dict[str, Any]:
    """The request's JSON object."""
    try:
        body = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return body


def read_request(body: Mapping[str, Any], session: Session, model: str) -> ChatRequest:
    """Check a request against the session's sampling; RequestError says what it may not ask for."""
    if body.get("model") != model:
        raise RequestError(f"the model {body.get('model')!r} does not exist, this gateway serves {model!r}",
                           status=404, param="model", code="model_not_found")
    if body.get("stream"):
        raise RequestError("stream = true is not supported, replies come whole; send stream = false or leave it out",
                           param="stream", code="unsupported_value")
    _check_settled(body, _stamped(session.sampling), "the profile samples with")
    _check_settled(body, _NEUTRAL, "the only value is")
    _check_thinking(body, session.format.enable_thinking)
    tools = _mappings(body, "tools") if body.get("tools") is not None else []
    _check_tools(tools, body.get("tool_choice"))
    known = _READ | _HARMLESS | _NEUTRAL.keys() | _stamped(session.sampling).keys()
    for name, value in body.items():
        if name not in known and value is not None:
            raise RequestError(f"unknown field {name!r}; nothing here would read it", param=name, code="unknown_field")
    if not isinstance(body.get("logprobs") or False, bool):
        raise RequestError("logprobs must be true or false", param="logprobs")
    return ChatRequest(_mappings(body, "messages"), tools, bool(body.get("logprobs")))


def completion_body(completion: Completion, request: ChatRequest, session: Session, *, number: int, created: int,
                    model: str) -> dict[str, Any]:
    """The response to a finished call."""
    reply = completion.reply
    message: dict[str, Any] = {**reply.message, "refusal": None}
    if reply.tool_calls and not message["content"]:
        message["content"] = None
    finish = "length" if reply.truncated else "tool_calls" if reply.tool_calls else "stop"
    logprobs = {"content": _log_probabilities(completion, session), "refusal": None} if request.logprobs else None
    sampled = len(completion.sampled_ids)
    return {
        "id": f"chatcmpl-{session.rollout_id}-{number}", "object": "chat.completion", "created": created,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": logprobs}],
        "usage": {"prompt_tokens": completion.prompt_tokens, "completion_tokens": sampled,
                  "total_tokens": completion.prompt_tokens + sampled},
    }


def _stamped(sampling: Sampling) -> dict[str, Any]:
    """Request fields whose value the profile fixes."""
    return {
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty, "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty, "stop_token_ids": list(sampling.stop_token_ids),
        "max_tokens": sampling.max_tokens, "max_completion_tokens": sampling.max_tokens, "seed": sampling.seed,
        "reasoning_effort": None,
    }


def _check_settled(body: Mapping[str, Any], settled: Mapping[str, Any], why: str) -> None:
    for name, value in settled.items():
        given = body.get(name)
        if given is None or _same(given, value):
            continue
        raise RequestError(f"{name} = {json.dumps(given)[:200]} is not possible, {why} {json.dumps(value)}",
                           param=name, code="unsupported_value")


def _same(given: Any, value: Any) -> bool:
    """Equal as JSON: true is not 1, but 1 is 1.0; an empty list, object or text is as good as another."""
    if isinstance(value, list | dict) and not value:
        return given in ([], {}, "")
    return isinstance(given, bool) == isinstance(value, bool) and given == value


def _check_thinking(body: Mapping[str, Any], enabled: bool) -> None:
    given = body.get("chat_template_kwargs")
    settled = {"enable_thinking": enabled}
    if given not in (None, {}, settled):
        raise RequestError(f"chat_template_kwargs = {json.dumps(given)[:200]} is not possible, the profile renders "
                           f"with {json.dumps(settled)}", param="chat_template_kwargs", code="unsupported_value")


def _check_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> None:
    for index, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if tool.get("type") != "function" or not isinstance(name, str):
            raise RequestError(f"tools[{index}] must have type 'function' and a function with a name", param="tools")
    if choice not in (None, "auto") and not (choice == "none" and not tools):
        raise RequestError(f"tool_choice = {json.dumps(choice)[:200]} is not possible, the only value is \"auto\": the "
                           "policy chooses", param="tool_choice", code="unsupported_value")


def _mappings(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    items = body.get(name)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError(f"{name} must be a list of objects", param=name)
    return items


def _log_probabilities(completion: Completion, session: Session) -> list[dict[str, Any]]:
    """One entry per sampled token, those of tool calls and the stop token included."""
    content: list[dict[str, Any]] = []
    for index, value in enumerate(completion.log_probabilities.tolist()):
        token = session.format.decode(completion.sampled_ids[index:index + 1])
        content.append({"token": token, "logprob": value if math.isfinite(value) else _UNLIKELY,
                        "bytes": None if "\ufffd" in token else list(token.encode()), "top_logprobs": []})
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
