"""Tasks from a seed.

A *problem* is a correct program, the same with one line wrong, a statement, and tests that tell the two apart.
Problem ``index`` of a split depends on nothing but the two; families take turns, so every split is balanced. All tests
are made by running the correct program here, which is safe because both programs come from the families.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_bench.contract.values import Task

from .families import FAMILIES
from .grammar import Edit, Family, single_change
from .pieces import FUNCTIONS
from .structure import SPLITS, bucket

SOLUTION = "solution.py"
VISIBLE_TEST = "visible_test.py"
HIDDEN_TESTS = 12
_CANDIDATES = 28
_MINIMUM_TELLING = 4

Tests = tuple[tuple[list[Any], Any], ...]


@dataclass(frozen=True, slots=True)
class Raised:
    """A run that ended with an exception, by the name of its type."""

    kind: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything about a task, the answer included. ``fix`` is the edit that makes ``buggy`` correct again."""

    split: str
    index: int
    family: Family
    operator: str
    function: str
    statement: str
    correct: tuple[str, ...]
    buggy: tuple[str, ...]
    fix: Edit
    visible: Tests
    hidden: Tests
    buggy_values: Mapping[str, str]
    names: Mapping[str, str]

    def plausible_edits(self) -> list[Edit]:
        """Edits of the buggy file that change one slot; the fix is among them."""
        return list(self.family.changes(self.function, self.buggy_values, self.names))

    def visible_failure(self, lines: Sequence[str]) -> str:
        """What the visible test script would say of a program of this family, empty where it passes."""
        for arguments, expected in self.visible:
            got = run(lines, self.function, arguments)
            if isinstance(got, Raised):
                return f"{got.kind}, expected {expected!r}"
            if got != expected:
                return f"got {got!r}, expected {expected!r}"
        return ""


def draw(split: str, index: int) -> Problem:
    """Problem ``index`` (from 0) of a split."""
    family = FAMILIES[index % len(FAMILIES)]
    r = random.Random((sorted(SPLITS).index(split) << 40) + index)
    while True:
        values, names, function = family.draw_values(r), family.draw_names(r), r.choice(FUNCTIONS)
        correct = family.render(function, values, names)
        if bucket(correct) not in SPLITS[split]:
            continue
        slot_name = r.choice(list(family.slots))
        slot = family.slots[slot_name]
        others = [value for value in (*slot.options, *slot.faults) if value != values[slot_name]]
        if not others:
            continue
        buggy_values = {**values, slot_name: r.choice(others)}
        buggy = family.render(function, buggy_values, names)
        change = single_change(correct, buggy)
        tests = change and _tests(family, function, correct, buggy, r)
        if not change or not tests:
            continue
        return Problem(
            split=split, index=index, family=family, operator=slot.operator, function=function,
            statement=f"{function} should return {family.words(values).format(**names)}.",
            correct=tuple(correct), buggy=tuple(buggy), fix=Edit(change.line, correct[change.line - 1]),
            visible=tests[0], hidden=tests[1], buggy_values=buggy_values, names=names,
        )


def run(lines: Sequence[str], function: str, arguments: Sequence[Any]) -> Any:
    """What a program of the families returns for ``arguments``, or what it raised."""
    try:
        return _load("\n".join(lines))[function](*arguments)
    except Exception as error:
        return Raised(type(error).__name__)


@functools.lru_cache(maxsize=64)
def _load(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, SOLUTION, "exec"), namespace)
    return namespace


def _tests(
    family: Family, function: str, correct: Sequence[str], buggy: Sequence[str], r: random.Random
) -> tuple[Tests, Tests] | None:
    """Two visible tests, one of which the buggy program fails at least, and hidden ones; None where there are none."""
    telling: list[tuple[list[Any], Any]] = []
    silent: list[tuple[list[Any], Any]] = []
    for _ in range(_CANDIDATES):
        arguments = family.arguments(r)
        expected = run(correct, function, arguments)
        if not isinstance(expected, Raised):
            got = run(buggy, function, arguments)
            same = got == expected and type(got) is type(expected)
            (silent if same else telling).append((arguments, expected))
    if len(telling) < _MINIMUM_TELLING or len(telling) + len(silent) < HIDDEN_TESTS:
        return None
    second = silent.pop() if silent else telling.pop()
    visible = (telling[0], second)
    hidden = (telling[1:] + silent) if len(silent) < HIDDEN_TESTS // 2 else telling[1:7] + silent
    return visible, tuple(hidden[:HIDDEN_TESTS])


def make_task(split: str, index: int) -> Task:
    """Task ``index`` (from 0) of a split, as the rest of the system sees it."""
    return as_task(draw(split, index))


def as_task(problem: Problem) -> Task:
    """The task of a problem: its answer left out, its hidden tests in the payload."""
    prompt = {
        "statement": problem.statement,
        "path": SOLUTION,
        "files": {SOLUTION: "\n".join(problem.buggy) + "\n", VISIBLE_TEST: visible_test(problem)},
        "test_command": ["python", VISIBLE_TEST],
    }
    payload = {"function": problem.function, "tests": [list(test) for test in problem.hidden]}
    content = json.dumps([prompt, payload], sort_keys=True)
    return Task(
        id=f"{problem.split}-{problem.index:06d}", split=problem.split, prompt=prompt, payload=payload,
        fingerprint=hashlib.sha256(content.encode()).hexdigest(),
    )


def visible_test(problem: Problem) -> str:
    """The script that an agent may run. It exits with 1 and one line on stderr where a test fails."""
    return (
        f"from solution import {problem.function}\n\n"
        f"for arguments, expected in {[list(test) for test in problem.visible]!r}:\n"
        "    try:\n"
        f"        got = {problem.function}(*arguments)\n"
        "    except Exception as error:\n"
        "        raise SystemExit(f'{type(error).__name__}, expected {expected!r}')\n"
        "    if got != expected:\n"
        "        raise SystemExit(f'got {got!r}, expected {expected!r}')\n"
    )


def tasks(split: str, count: int) -> list[Task]:
    """The first ``count`` tasks of a split."""
    return [make_task(split, index) for index in range(count)]
