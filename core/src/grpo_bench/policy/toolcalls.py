"""How a reply's text becomes content and tool calls (the ``qwen3_xml`` form), and what types arguments take.

A reply is content followed by any number of calls::

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value is what stands between its tags less one newline on each side, so indentation survives. The whole reply must
be of this form: one flaw (a missing tag, also one that a line ``<parameter=`` inside a value gives away, a parameter
twice, text after a call) makes it an ordinary message, so that an agent never acts on a call that the policy did not
quite make.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract import ToolCall

_CALL = "<tool_call>"
_OPEN = re.compile(r"<tool_call>\s*<function=([^<>\n]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>(.*?)</parameter>\s*(?=<parameter=|</function>)", re.DOTALL)
_CLOSE = re.compile(r"</function>\s*</tool_call>\s*")

_KINDS: dict[str, type | tuple[type, ...]] = {
    "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict, "null": type(None)}


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply taken apart. ``malformed``: it tried to call a tool and failed, so all of it is ``content``.
    ``reasoning`` is None where the chat template knows none or the reply has none."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    malformed: bool = False


def parse_qwen3_xml(text: str, call_id: str) -> Parsed:
    """Take ``text`` apart; call ids are ``<call_id>_<index>``."""
    start = text.find(_CALL)
    if start < 0:
        return Parsed(text, malformed="<function=" in text)
    calls: list[ToolCall] = []
    at = start
    while at < len(text):
        found = _read_call(text, at, f"{call_id}_{len(calls)}")
        if found is None:
            return Parsed(text, malformed=True)
        call, at = found
        calls.append(call)
    return Parsed(text[:start].rstrip(), tuple(calls))


def _read_call(text: str, at: int, call_id: str) -> tuple[ToolCall, int] | None:
    """The call that starts at ``at`` and where it ends; None where it is malformed."""
    head = _OPEN.match(text, at)
    if head is None:
        return None
    arguments: dict[str, str] = {}
    at = head.end()
    while parameter := _PARAMETER.match(text, at):
        if parameter[1] in arguments or "\n<parameter=" in parameter[2]:
            return None
        arguments[parameter[1]] = parameter[2].removeprefix("\n").removesuffix("\n")
        at = parameter.end()
    tail = _CLOSE.match(text, at)
    return (ToolCall(call_id, head[1], arguments), tail.end()) if tail else None


def typed_arguments(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The call's arguments with the types that the tool's JSON schema asks for; what does not convert stays text."""
    schema: Mapping[str, Any] = {}
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == call.name:
            schema = (function.get("parameters") or {}).get("properties") or {}
            break
    return {name: _typed(value, schema.get(name)) for name, value in call.arguments.items()}


def _typed(value: str, schema: Any) -> Any:
    kinds = _kinds(schema) - {"string"}
    if not kinds:
        return value
    text = value.lower() if value in ("True", "False") else value
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return value
    return found if any(_fits(found, kind) for kind in kinds) else value


def _kinds(schema: Any) -> set[str]:
    """The names of the types that a schema allows, itself or by its alternatives; empty where it names none."""
    if not isinstance(schema, Mapping):
        return set()
    choices = [choice for name in ("anyOf", "oneOf", "allOf") if isinstance(given := schema.get(name), list)
               for choice in given if isinstance(choice, Mapping)]
    kinds = [part.get("type") for part in (schema, *choices)]
    return {name for kind in kinds for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str)}


def _fits(value: Any, kind: str) -> bool:
    """Whether JSON data is of a schema's type: 1 is no boolean, true no number, and 3.0 is an integer."""
    if isinstance(value, bool) or kind not in _KINDS:
        return kind == "boolean" and isinstance(value, bool)
    return isinstance(value, _KINDS[kind]) or (kind == "integer" and isinstance(value, float) and value.is_integer())


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
