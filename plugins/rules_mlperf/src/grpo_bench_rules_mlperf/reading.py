"""What an MLLOG says of itself, whoever wrote it: its lines, and what several checks want to know about them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from .form import TOKEN, Line, parse

STATISTICS = "tracked_stats"


def log_in(file: Path) -> str:
    """The lines of MLLOG in a file, without what stands around them; empty where there are none."""
    with file.open(encoding="utf-8", errors="replace") as stream:
        return "".join(line[line.rindex(TOKEN):].rstrip() + "\n" for line in stream if TOKEN in line)


def read(text: str) -> list[Line]:
    """All lines of a log; ValueError names the first that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(parse(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def values_of(lines: Sequence[Line], key: str) -> list[Any]:
    return [line.value for line in lines if line.key == key]


def value_of(lines: Sequence[Line], key: str) -> Any:
    """The first value of a key; None where there is none."""
    return next(iter(values_of(lines, key)), None)


def batch_of(lines: Sequence[Line]) -> int | None:
    """Rollouts per step, where the log says a number that can be."""
    batch = value_of(lines, "global_batch_size")
    return batch if type(batch) is int and batch > 0 else None


def sample_counts(lines: Sequence[Line]) -> list[Any]:
    """After how many samples each evaluation was."""
    return [line.metadata.get("samples_count") for line in lines if line.key == "eval_accuracy"]


def step_of(line: Line, lines: Sequence[Line]) -> int | None:
    """The step that a line is about, by its samples; an end that names none is about the last evaluation's."""
    batch, counts = batch_of(lines), sample_counts(lines)
    count = line.metadata.get("samples_count", counts[-1] if counts and line.key == "run_stop" else None)
    return count // batch if type(count) is int and batch is not None else None


def is_open(lines: Sequence[Line]) -> bool:
    """Whether the log is meant for the open division, where training is free."""
    return value_of(lines, "submission_division") == "open"


def is_success(lines: Sequence[Line]) -> bool:
    """Whether the log says that its run met the target."""
    return any(line.metadata.get("status") == "success" for line in lines if line.key == "run_stop")


def is_deferred(lines: Sequence[Line]) -> bool:
    """Whether the evaluations follow all of the training: two of them in a row, one of earlier weights than the last of
    the block before it, or an end before the last one began."""
    run = [line for line in lines if line.key.startswith(("block_", "eval_st"))]
    began = [line.time_ms for line in run if line.key == "eval_start"]
    return any(_is_late(before, after) for before, after in pairwise(run)) or any(
        line.time_ms < began[-1] for line in lines if line.key == "run_stop" and began)


def _is_late(before: Line, after: Line) -> bool:
    """Whether ``after`` begins an evaluation that did not follow its own step at once."""
    if after.key != "eval_start" or before.key == "eval_stop":
        return after.key == "eval_start"
    trained, evaluated = (line.metadata.get("samples_count") for line in (before, after))
    return (before.key == "block_stop" and type(trained) is int and type(evaluated) is int
            and evaluated < trained)


def seconds_of(lines: Sequence[Line]) -> float | None:
    """From ``run_start`` to ``run_stop``; None where one of them is missing or there twice."""
    starts, stops = ([line.time_ms for line in lines if line.key == key] for key in ("run_start", "run_stop"))
    return (stops[0] - starts[0]) / 1000 if len(starts) == len(stops) == 1 else None
