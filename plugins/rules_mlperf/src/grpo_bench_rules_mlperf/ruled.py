"""Checks on a log that depend on a version of the rules: where evaluations are, and what they may say.

What the rules leave free in the open division is left out for its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .form import Line
from .reading import batch_of, is_deferred, is_open, is_success, sample_counts, value_of
from .rules import Rules

_NEAR = 1e-3
"""How far from a number of tasks an accuracy may be, times the tasks: logs round."""


def _accuracy(rules: Rules, lines: Sequence[Line]) -> Iterator[str]:
    target = value_of(lines, "target_accuracy")
    if target is not None and target != float(rules.target):
        yield f"target_accuracy is {target!r}; the rules want {float(rules.target)}"
    tasks, met = rules.validation_tasks, False
    for value in (line.value for line in lines if line.key == "eval_accuracy"):
        solved = value * tasks if type(value) in (int, float) and 0 <= value <= 1 else -0.5
        met = met or round(solved) >= rules.needed(tasks)
        if abs(solved - round(solved)) > _NEAR:
            yield f"{value!r} is no share of {tasks} tasks"
    if is_success(lines) and target is None and not met:
        yield "the run is a success, and no evaluation reached the target"


def _series(rules: Rules, lines: Sequence[Line]) -> Iterator[str]:
    if is_open(lines):
        return
    counts, batch = sample_counts(lines), batch_of(lines)
    wanted = [batch * (rules.first_validation(batch) + number) for number in range(len(counts))] if batch else []
    if counts != wanted:
        yield f"evaluations at {counts} samples, the rules want {wanted}"


def _deferral(rules: Rules, lines: Sequence[Line]) -> Iterator[str]:
    wanted = any(requirement.rule == "validation.deferred" for requirement in rules.requirements)
    if wanted and sample_counts(lines) and not is_deferred(lines):
        yield "validations ran during training; the rules want them afterwards, of weights saved after each step"


CHECKS: dict[str, Callable[[Rules, Sequence[Line]], Iterator[str]]] = {
    "accuracy": _accuracy, "series": _series, "deferral": _deferral,
}
