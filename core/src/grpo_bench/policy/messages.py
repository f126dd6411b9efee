"""Chat messages in OpenAI's form, made ready for a chat template.

Templates want content as one string and tool arguments as a mapping, clients send parts and JSON text. Where a call
comes back as the policy made it, the arguments as sampled take the place of their JSON, so that a value such as
``[1,2]`` renders exactly as it was written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ConversationError(ValueError):
    """A conversation that cannot be put before the policy."""


class CallMemory:
    """The tool calls one rollout's policy made: JSON text given out, and the arguments as sampled."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, Mapping[str, str]]] = {}

    def keep(self, call_id: str, text: str, sampled: Mapping[str, str]) -> None:
        self._calls[call_id] = (text, sampled)

    def arguments(self, call_id: Any, text: Any) -> Any:
        """What to render for a call's arguments."""
        known = self._calls.get(call_id) if isinstance(call_id, str) else None
        if known is not None and known[0] == text:
            return known[1]
        if isinstance(text, Mapping):
            return text
        try:
            found = json.loads(text or "{}")
        except (TypeError, ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ConversationError(f"arguments of a tool call must be a JSON object, got {text!r:.80}")
        return found


def prepare(messages: Sequence[Mapping[str, Any]], memory: CallMemory) -> list[Mapping[str, Any]]:
    """The messages as a template wants them; ConversationError says which one is wrong."""
    if not messages:
        raise ConversationError("a conversation needs at least one message")
    return [_prepared(index, message, memory) for index, message in enumerate(messages)]


def _prepared(index: int, message: Mapping[str, Any], memory: CallMemory) -> Mapping[str, Any]:
    role = message.get("role")
    name = _ROLES.get(role) if isinstance(role, str) else None
    if name is None:
        raise ConversationError(f"messages[{index}]: unknown role {role!r}; roles are {', '.join(_ROLES)}")
    content, calls = message.get("content"), message.get("tool_calls")
    if name == role and not calls and isinstance(content, str):
        return message
    ready: dict[str, Any] = {**message, "role": name, "content": _text(index, content)}
    ready.pop("tool_calls", None)
    if calls:
        if not isinstance(calls, list | tuple):
            raise ConversationError(f"messages[{index}]: tool_calls must be a list of calls")
        ready["tool_calls"] = [_call(index, call, memory) for call in calls]
    return ready


def _text(index: int, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, Sequence):
        raise ConversationError(f"messages[{index}]: content must be text or a list of text parts")
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise ConversationError(f"messages[{index}]: content part {kind!r} is not text, the policy reads text only")
        parts.append(text)
    return "".join(parts)


def _call(index: int, call: Any, memory: CallMemory) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConversationError(f"messages[{index}]: a tool call needs function.name and function.arguments")
    arguments = memory.arguments(call.get("id"), function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}
