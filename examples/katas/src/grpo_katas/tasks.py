"""Tasks from a file of lines in JSON. A line that is not as it should be ends the plan with its number.

The first case of a task is told to the agent and is what ``check`` tries; the others are hidden in the payload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationError

from grpo_bench.contract import InputError, Settings, Task

FILE = "answer.txt"
COMMAND = "check"


class Case(Settings):
    given: dict[str, JsonValue]
    """Names that the expression may use, with their values."""
    value: JsonValue
    """What it should give."""


class Line(Settings):
    id: Annotated[str, Field(min_length=1)]
    split: Literal["train", "heldout"]
    statement: Annotated[str, Field(min_length=1)]
    start: str
    """The expression that an agent finds."""
    cases: Annotated[tuple[Case, ...], Field(min_length=2)]


def read_tasks(file: Path) -> Mapping[str, list[Task]]:
    """The tasks of each split, in the file's order."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}", hint="environment.tasks names the file") from error
    tasks: dict[str, list[Task]] = {"train": [], "heldout": []}
    seen: dict[str, int] = {}
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = Line.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise InputError(f"{file}:{number}: {_said(error)}", hint="one task per line, in JSON") from None
        if line.id in seen:
            raise InputError(f"{file}:{number}: the id {line.id!r} is that of line {seen[line.id]}")
        seen[line.id] = number
        tasks[line.split].append(_task(line, hashlib.sha256(text).hexdigest()))
    return tasks


def _task(line: Line, fingerprint: str) -> Task:
    shown = line.cases[0]
    given = " and ".join(f"{name} = {value!r}" for name, value in shown.given.items())
    prompt = {"statement": f"{line.statement}\nFor instance, {given} should give {shown.value!r}.", "path": FILE,
              "test_command": [COMMAND]}
    cases = [{"given": case.given, "value": case.value} for case in line.cases]
    return Task(line.id, line.split, prompt, {"files": {FILE: f"{line.start}\n"}, "cases": cases}, fingerprint)


def _said(error: ValidationError) -> str:
    """All that is wrong with a line, in one."""
    found = error.errors(include_url=False, include_context=False)
    return "; ".join(": ".join([".".join(map(str, item["loc"])), item["msg"]] if item["loc"] else [item["msg"]])
                     for item in found)
