"""Scripts: what a policy says to which task, turn by turn, and how that reads as a policy's reply.

A script is one JSON file. Each of its tasks is known by a text that occurs in its prompts, and has variants: ways to go
about it, each a list of replies and the reward that grading owes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from grpo_bench.contract import Missing, PlanError, Settings

if TYPE_CHECKING:
    from grpo_bench.policy import ChatFormat

Name = Annotated[str, Field(min_length=1)]


class Call(Settings):
    name: Name
    arguments: dict[str, Any] = {}
    """Text stands as it is, anything else as JSON."""


class Said(Settings):
    content: str = ""
    calls: tuple[Call, ...] = ()


class Variant(Settings):
    name: Name
    reward: float
    """What grading owes a rollout that plays this variant to its end."""
    replies: Annotated[tuple[Said, ...], Field(min_length=1)]


class ScriptedTask(Settings):
    when: str
    """Text that occurs in the prompts of this task and of no other; empty: in all."""
    instance_id: Name
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]


class Script(Settings):
    form: Literal[1] = Field(alias="schema")
    tasks: Annotated[tuple[ScriptedTask, ...], Field(min_length=1)]


FINISH = Said(calls=(Call(name="finish", arguments={"message": "That was all."}),))
"""What is replied after the last reply of a variant."""


def read(path: Path) -> Script:
    """The script in a file; Missing where there is no file, PlanError where it holds no script."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        raise Missing(f"script {path} does not exist", hint="`grpo-bench tasks build` writes one beside its tasks") \
            from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"script {path} cannot be read: {error}") from error
    try:
        return Script.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise PlanError(f"script {path}: {place + ': ' if place else ''}{first['msg']}") from None


def text_of(said: Said) -> str:
    """A reply as the policy would write it."""
    calls = "\n".join(_call(call) for call in said.calls)
    content = _content(said)
    return f"{content}\n{calls}" if content and calls else content or calls


def check(script: Script, path: Path, chat_format: ChatFormat) -> None:
    """PlanError unless every reply is read again as what it says."""
    for task in script.tasks:
        for variant in task.variants:
            for turn, said in enumerate(variant.replies):
                parsed = chat_format.parse(text_of(said))
                calls = [(call.name, dict(call.arguments)) for call in parsed.tool_calls]
                meant = [(call.name, {name: _value(value) for name, value in call.arguments.items()})
                         for call in said.calls]
                if (parsed.content, calls, parsed.malformed) != (_content(said), meant, False):
                    raise PlanError(f"script {path}: reply {turn} of variant {variant.name!r} of {task.instance_id} "
                                    "would not be read as it is meant",
                                    hint="tags of tool calls cannot be said within a reply")


def _content(said: Said) -> str:
    return said.content.rstrip() if said.calls else said.content


def _call(call: Call) -> str:
    parameters = "".join(f"<parameter={name}>\n{_value(value)}\n</parameter>\n"
                         for name, value in call.arguments.items())
    return f"<tool_call>\n<function={call.name}>\n{parameters}</function>\n</tool_call>"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
