"""The chat template of the base policy, rendered as transformers renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

SOURCE = Path(__file__).with_name("chat_template.jinja").read_text("utf-8")


class Template:
    """Renders conversations in OpenAI's chat form; a call's ``arguments`` are a mapping."""

    def __init__(self) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(SOURCE)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = (), *,
               add_generation_prompt: bool) -> str:
        return self._template.render(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt)
