"""Conversations and replies that the gateway and vLLM's server are compared over. Pure data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


EDIT = tool("edit", path={"type": "string"}, line={"type": "integer"}, text={"type": "string"})
RUN = tool("run", command={"type": "string", "description": "«Befehl» 命令"}, timeout={"type": "number"},
           background={"type": "boolean"}, env={"type": "object"}, args={"type": "array", "items": {"type": "string"}},
           input={"type": ["string", "null"]}, count={"anyOf": [{"type": "integer"}, {"type": "null"}]}, any={},
           level={"type": "string", "enum": ["1", "2"]})
SUBMIT = {"type": "function", "function": {"name": "submit"}}
TOOLS = (EDIT, RUN)

SYSTEM = {"role": "system", "content": "You repair software."}
ASK = {"role": "user", "content": "Fix the function add."}


def said(content: str | None, *calls: tuple[str, dict[str, Any]], **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": {
            "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
            for number, (name, arguments) in enumerate(calls)]
    return message


def result(content: Any, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": content}


VIEW = ("edit", {"path": "a.py", "line": 3, "text": "    return a + b\n"})
CONVERSATIONS: Mapping[str, tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]] = {
    "user only": ([ASK], ()),
    "system and user": ([SYSTEM, ASK], ()),
    "tools": ([ASK], TOOLS),
    "system and tools": ([SYSTEM, ASK], TOOLS),
    "empty system and tools": ([{"role": "system", "content": ""}, ASK], TOOLS),
    "a tool without description or parameters": ([ASK], (SUBMIT,)),
    "a call and its result": ([SYSTEM, ASK, said("I look.", VIEW), result("3\treturn a - b")], TOOLS),
    "a call without words": ([ASK, said("", VIEW), result("done")], TOOLS),
    "a call with null content": ([ASK, said(None, VIEW), result("done")], TOOLS),
    "two calls and two results": (
        [ASK, said("Both.", VIEW, ("run", {"command": "pytest"})), result("ok"), result("1 passed", 1)], TOOLS),
    "several turns": ([SYSTEM, ASK, said("Look.", VIEW), result("x"), said("Test.", ("run", {"command": "pytest"})),
                       result("1 failed"), said("Again.", VIEW), result("y")], TOOLS),
    "a second question": ([ASK, said("Which one?"), {"role": "user", "content": "In a.py."}], TOOLS),
    "an empty result": ([ASK, said("", ("run", {"command": "true"})), result("")], TOOLS),
    "an empty question": ([{"role": "user", "content": ""}], ()),
    "an empty reply": ([ASK, said(""), ASK], ()),
    "spaces around everything": ([{"role": "system", "content": "\n s \n"}, {"role": "user", "content": " a\n\n"},
                                  said("\n b \n"), {"role": "user", "content": "\tc "}], ()),
    "unicode": ([{"role": "user", "content": "Füge 数字 hinzu 🙂 \u200b\u2028 ﷽ e\u0301"},
                 said("naïve", ("run", {"command": "echo 'ü' \"数\" 🙂"})), result("🙂\n数")], TOOLS),
    "markup in what users and tools say": (
        [{"role": "user", "content": "a </think> <tool_call> <|im_end|> b"}, said("c", VIEW),
         result("<tool_response> </tool_response> <|im_start|>user")], TOOLS),
    "arguments of all types": ([ASK, said("", ("run", {
        "command": "x", "timeout": 1.5, "background": True, "env": {"A": "ü", "B": [1, None]}, "args": ["a", "b c"],
        "input": None, "count": 3, "any": {}})), result("ok")], TOOLS),
    "arguments with lines and markup": (
        [ASK, said("", ("edit", {"path": "a.py", "line": 1, "text": "\n\n  if a < b:\n\treturn \"</parameter>\"\n\n"})),
         result("ok")], TOOLS),
    "a call without arguments": ([ASK, said("Done.", ("submit", {})), result("bye")], (EDIT, SUBMIT)),
    "text in parts": ([{"role": "user", "content": [{"type": "text", "text": "Fix "},
                                                    {"type": "text", "text": "it."}]}], ()),
    "a developer": ([{"role": "developer", "content": "You repair software."}, ASK], TOOLS),
    "arguments as empty text": ([ASK, {"role": "assistant", "content": "Bye.", "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "edit", "arguments": ""}}]}, result("")], TOOLS),
    "a name with a message": ([{**ASK, "name": "eva"}, said("", VIEW), {**result("ok"), "name": "edit"}], TOOLS),
    "a result in parts": ([ASK, said("", VIEW), result([{"type": "text", "text": "done"}])], TOOLS),
    "reasoning in the history": ([ASK, said("Look.", VIEW, reasoning_content="It is wrong."), result("x")], TOOLS),
}


def call(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


CODE = "def add(a, b):\n    if a < b and b > 0:\n\n        return \"a\\tb\"\n    return a + b"
ANSWERS: Mapping[str, str] = {
    "words": "I am done.",
    "nothing": "",
    "words with line breaks and spaces": "\n\n  one\n\ntwo  \n",
    "unicode": "Fertig: 数字 🙂 é ﷽",
    "a call": call("edit", ("path", "a.py"), ("line", "3"), ("text", "    return a + b")),
    "words and a call": "I fix it.\n\n" + call("edit", ("path", "a.py"), ("line", "3"), ("text", "x")),
    "words right before a call": "I fix it." + call("edit", ("path", "a.py")),
    "a call without parameters": call("submit"),
    "an unknown function": call("delete", ("path", "a.py")),
    "an unknown parameter": call("edit", ("colour", "red"), ("line", "3")),
    "lines": call("edit", ("path", "a.py"), ("line", "1"), ("text", CODE)),
    "line breaks at both ends": call("edit", ("text", "\n\nx\n\n")),
    "spaces at both ends": call("edit", ("text", "  x  "), ("path", " a.py ")),
    "an empty value": call("edit", ("text", "")),
    "a value on one line": "<tool_call>\n<function=edit>\n<parameter=path>a.py</parameter>\n</function>\n</tool_call>",
    "no line breaks": "<tool_call><function=edit><parameter=path>a.py</parameter></function></tool_call>",
    "types": call("run", ("command", "5"), ("timeout", "1.5"), ("background", "true"), ("env", '{"A": "ü", "B": [1]}'),
                  ("args", '["a", "b"]'), ("input", "null"), ("count", "3"), ("any", "7"), ("level", "1")),
    "types as Python writes them": call("run", ("background", "True"), ("env", "{'A': 1}"), ("args", "['a']")),
    "whole number for a number": call("run", ("timeout", "5")),
    "types that do not fit": call("edit", ("line", "three")),
    "a float for an integer": call("edit", ("line", "3.0")),
    "a sign and spaces": call("edit", ("line", " -3 ")),
    "a boolean that is none": call("run", ("background", "yes")),
    "a figure for a boolean": call("run", ("background", "1")),
    "another type than the schema's": call("run", ("env", "[1]"), ("args", "7"), ("background", "[]")),
    "figures that are not JSON": call("run", ("timeout", "+5")) + call("edit", ("line", "007")),
    "no finite number": call("run", ("timeout", "Infinity"), ("args", "[NaN]"), ("env", '{"a": 1e999}')),
    "broken JSON": call("run", ("env", '{"A": '), ("args", "a, b")),
    "null for text": call("edit", ("text", "null")),
    "null in capitals for null": call("run", ("input", "None"), ("count", "null")),
    "markup in a value": call("edit", ("text", "a <b> &amp; </function> <tool_call> c")),
    "a tag of a parameter in a value": call("edit", ("text", "say '</parameter>' to it")),
    "quotes and backslashes": call("run", ("command", "echo \"a\\nb\" 'c' \\\\ \u2028")),
    "two calls": call("edit", ("path", "a.py")) + "\n" + call("run", ("command", "pytest")),
    "two calls without a line break": call("edit", ("path", "a.py")) + call("submit"),
    "words between two calls": call("edit", ("path", "a.py")) + "\nand\n" + call("run", ("command", "pytest")),
    "words after a call": call("edit", ("path", "a.py")) + "\nThat is it.",
    "line breaks after a call": call("edit", ("path", "a.py")) + "\n\n",
    "a parameter twice": call("edit", ("path", "a.py"), ("path", "b.py")),
    "no end of a parameter": call("edit", ("path", "a.py")).replace("\n</parameter>", ""),
    "no end of the first parameter": call("edit", ("path", "a.py"), ("line", "1")).replace("\n</parameter>", "", 1),
    "no end of the function": call("edit", ("path", "a.py")).replace("\n</function>", ""),
    "no end of the call": call("edit", ("path", "a.py")).removesuffix("</tool_call>"),
    "no function": "<tool_call>\n</tool_call>",
    "no start of the call": call("edit", ("path", "a.py")).removeprefix("<tool_call>\n"),
    "no name": call(""),
    "a call in JSON": '<tool_call>\n{"name": "edit", "arguments": {"path": "a.py"}}\n</tool_call>',
    "reasoning and words": "<think>\nIt adds.\n</think>\n\nI am done.",
    "reasoning and a call": "<think>\nIt adds.\n</think>\n\n" + call("edit", ("path", "a.py")),
    "the end of reasoning alone": "It adds.\n</think>\n\nI am done.",
    "reasoning that does not end": "<think>\nIt adds.",
}
