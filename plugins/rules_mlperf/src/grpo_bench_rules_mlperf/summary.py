"""What a submission's logs come to: a row for each run, and their median, as JSON data and as a table.

A run's score is the time from ``run_start`` to ``run_stop``; that of three runs is the median. Samples to converge are
those of the evaluation that met the target, the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .form import Line
from .reading import batch_of, seconds_of, value_of

_HEAD = ("", "run", "seed", "batch", "evaluations", "samples", "pass@4", "minutes")


@dataclass(frozen=True)
class Row:
    """One run. ``evaluations`` counts those in the log; ``accuracy`` is the last one's."""

    result: str
    run: str
    seed: int
    batch: int
    evaluations: int
    samples: int
    accuracy: float
    minutes: float


def row(result: str, run: str, lines: Sequence[Line]) -> Row:
    """The row of a log that the checkers pass."""
    evaluations = [line for line in lines if line.key == "eval_accuracy"]
    last, seconds, batch = evaluations[-1], seconds_of(lines), batch_of(lines)
    assert seconds is not None and batch is not None
    samples = last.metadata["samples_count"]
    return Row(result, run, value_of(lines, "seed"), batch, len(evaluations), samples, last.value, seconds / 60)


def score(rows: Sequence[Row]) -> float:
    """Minutes."""
    return median(item.minutes for item in rows)


def to_json(rows: Sequence[Row], facts: Mapping[str, Any], clocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``facts`` say whose the submission is, and of what; ``clocks`` are the ledgers of the runs' scores."""
    return {**facts, "score_minutes": score(rows),
            "runs": [{**asdict(item), "clock": dict(clock)} for item, clock in zip(rows, clocks, strict=True)]}


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table, its head first and the median last."""
    body = [(item.result, item.run, str(item.seed), str(item.batch), str(item.evaluations), str(item.samples),
             f"{item.accuracy:.4f}", f"{item.minutes:.3f}") for item in rows]
    last = ("median", *[""] * (len(_HEAD) - 2), f"{score(rows):.3f}")
    return [_HEAD, *body, last]


def plain(rows: Sequence[Row]) -> str:
    """The table in columns."""
    table = cells(rows)
    widths = [max(len(line[number]) for line in table) for number in range(len(_HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in table)


def markdown(rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """The same as a page."""
    head, *body = cells(rows)
    table = [head, tuple("---" for _ in head), *body]
    said = "".join(f"- {key.replace('_', ' ')}: {value}\n" for key, value in facts.items())
    return (f"# {facts['benchmark']}: {score(rows):.3f} minutes\n\n{said}\n"
            + "".join(f"| {' | '.join(line)} |\n" for line in table))
