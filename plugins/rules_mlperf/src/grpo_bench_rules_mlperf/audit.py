"""What the official checker does not look at, in any MLLOG of this benchmark.

A log tells of one run: set-up, then blocks of training and evaluations, then its end. Evaluations either take turns
with blocks, or all follow the training (*deferred*). A deferred log tells when weights were updated, which is before it
tells what came of them: its last ``block_stop`` has the time of the last weight update, and ``run_stop``, which stands
last, that of the update behind the weights of the last evaluation. These two times, and no others, may be before those
of the lines that they follow; each has to lie between the statistics of the step before and those of its own.

Each check here is about one thing that would be wrong in a log whoever wrote it; those that depend on a version of the
rules are in ``ruled``. ``audit`` returns one finding for each that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from grpo_bench.contract import Finding

from . import ruled
from .form import END, POINT, START, Line
from .reading import (
    STATISTICS, batch_of, is_deferred, is_open, is_success, read, sample_counts, step_of, value_of, values_of,
)
from .rules import Rules

MAX_SEED = 2**32 - 1
_ORDER = ("cache_clear", "init_start", "init_stop", "run_start", "run_stop")
_IN_TURNS = {"run_start": ("block_start", "eval_start"), "block_start": ("block_stop",), "block_stop": ("eval_start",),
             "eval_start": ("eval_accuracy",), "eval_accuracy": ("eval_stop",), "eval_stop": ("block_start",)}
_DEFERRED = {**_IN_TURNS, "run_start": ("block_start",), "block_stop": ("block_start", "eval_start"),
             "eval_stop": ("eval_start",)}
"""What may come next among the lines of a run, its end aside."""
_ENDS_AFTER = ("block_stop", "eval_stop")


def audit(text: str, *, strict: Rules | None = None) -> tuple[Finding, ...]:
    """All that is wrong with a log; nothing where it is sound. ``strict``: it is meant for these rules."""
    try:
        lines = read(text)
    except ValueError as error:
        return (Finding("mllog form", False, str(error)),)
    found = [Finding(f"mllog {name}", False, message) for name, check in _CHECKS.items() for message in check(lines)]
    if strict is not None:
        found += [Finding(f"mllog {name}", False, message) for name, check in ruled.CHECKS.items()
                  for message in check(strict, lines)]
    return tuple(found)


def _event_types(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        wanted = START if line.key.endswith("_start") else END if line.key.endswith("_stop") else POINT
        if line.event_type != wanted:
            yield f"{line.key} is of type {line.event_type}, not {wanted}"


def _times(lines: Sequence[Line]) -> Iterator[str]:
    of_updates = _of_updates(lines) if is_deferred(lines) else []
    for before, after in pairwise(line for line in lines if not any(line is other for other in of_updates)):
        if after.time_ms < before.time_ms:
            yield f"{after.key} is {before.time_ms - after.time_ms} ms before {before.key}, which it follows"
    for line in of_updates:
        yield from _misplaced(line, lines)


def _of_updates(lines: Sequence[Line]) -> list[Line]:
    """The lines of a deferred log that have the time of a weight update."""
    return [line for key in ("block_stop", "run_stop") for line in [found for found in lines if found.key == key][-1:]]


def _misplaced(line: Line, lines: Sequence[Line]) -> Iterator[str]:
    """Why ``line`` cannot have the time of its step's weight update."""
    step = step_of(line, lines)
    statistics = [(other, step_of(other, lines)) for other in lines if other.key == STATISTICS] if step else []
    before = [other for other in lines if other.key == "run_start"] + [
        other for other, number in statistics if number == (step or 0) - 1]
    after = [other for other in lines if other.key == "eval_start"] + [
        other for other, number in statistics if number == step]
    if before and line.time_ms < (latest := max(before, key=lambda other: other.time_ms)).time_ms:
        yield f"{line.key} is {latest.time_ms - line.time_ms} ms before {_called(latest)}"
    if after and line.time_ms > (earliest := min(after, key=lambda other: other.time_ms)).time_ms:
        yield f"{line.key} is {line.time_ms - earliest.time_ms} ms after {_called(earliest)}"


def _called(line: Line) -> str:
    return f"the statistics of step {line.metadata.get('step')}" if line.key == STATISTICS else line.key


def _seed(lines: Sequence[Line]) -> Iterator[str]:
    seeds = values_of(lines, "seed")
    if len(seeds) != 1 and (seeds or not is_open(lines)):
        yield f"should be there once, is there {len(seeds)} times"
    elif seeds and (type(seeds[0]) is not int or not 0 <= seeds[0] <= MAX_SEED):
        yield f"should be an integer between 0 and {MAX_SEED}, is {seeds[0]!r}"


def _order(lines: Sequence[Line]) -> Iterator[str]:
    keys = [line.key for line in lines]
    missing = [key for key in _ORDER if key not in keys]
    if missing:
        yield f"{', '.join(missing)} missing"
        return
    places = [keys.index(key) for key in _ORDER]
    yield from (f"{second} stands before {first}" for (first, a), (second, b) in pairwise(zip(_ORDER, places)) if b < a)
    allowed = _DEFERRED if is_deferred(lines) else _IN_TURNS
    run = [key for key in keys[keys.index("run_start"):] if key in (*allowed, "run_stop", STATISTICS)]
    if "run_stop" in run[:-1]:
        yield f"{run[run.index('run_stop') + 1]} follows run_stop"
    for before, after in pairwise(key for key in run if key != STATISTICS):
        if after == "run_stop" and before not in _ENDS_AFTER:
            yield f"the run stops after {before}"
        elif "run_stop" not in (before, after) and after not in allowed[before]:
            yield f"{after} follows {before}"


def _status(lines: Sequence[Line]) -> Iterator[str]:
    target = value_of(lines, "target_accuracy")
    passing = [_passes(line.value, target) for line in lines if line.key == "eval_accuracy"]
    for line in lines:
        if line.key == "run_stop":
            status = line.metadata.get("status")
            if status not in ("success", "aborted"):
                yield f"should be success or aborted, is {status!r}"
            elif target is not None and (status == "success") != any(passing):
                yield f"is {status}, and {'an' if any(passing) else 'no'} evaluation reached the target"
    if True in passing[:-1]:
        yield "an evaluation follows the one that reached the target"


def _passes(value: Any, target: Any) -> bool:
    return all(type(number) in (int, float) for number in (value, target)) and value >= target


def _learning_rate(lines: Sequence[Line]) -> Iterator[str]:
    ends, bases = values_of(lines, "opt_end_learning_rate"), values_of(lines, "opt_base_learning_rate")
    if len(ends) != 1:
        if ends or not is_open(lines):
            yield f"opt_end_learning_rate should be there once, is there {len(ends)} times"
    elif "constant" in values_of(lines, "opt_learning_rate_decay_schedule") and bases[:1] != ends:
        yield f"is constant, and ends at {ends[0]} where it should be {', '.join(map(str, bases))}"


def _samples(lines: Sequence[Line]) -> Iterator[str]:
    batch, counts = batch_of(lines), sample_counts(lines)
    if batch is None:
        yield f"global_batch_size should be an integer above 0, is {value_of(lines, 'global_batch_size')!r}"
        return
    measured = is_deferred(lines) or is_success(lines)  # else training may have gone on after the last evaluation
    for line in lines:
        count = line.metadata.get("samples_count", 0)
        if type(count) is not int or count < 0 or count % batch:
            yield f"{line.key} at {count!r} samples, which is no number of steps of {batch}"
        elif _is_elsewhere(line, batch):
            yield f"{line.key} at {count} samples in step {line.metadata['step']}"
        elif measured and counts and line.key == "run_stop" and line.metadata.get("samples_count") not in (
                None, counts[-1]):
            yield f"run_stop at {count} samples, the last evaluation at {counts[-1]}"
    if all(type(count) is int for count in counts) and any(b <= a for a, b in pairwise(counts)):
        yield f"evaluations at {counts} samples do not go forward"


def _is_elsewhere(line: Line, batch: int) -> bool:
    """Whether a line's samples are not those of its step. The start of a block may count those of the block."""
    told = line.metadata
    return (line.key != "block_start" and {"samples_count", "step"} <= told.keys()
            and told["step"] != told["samples_count"] // batch)


_CHECKS: dict[str, Callable[[Sequence[Line]], Iterator[str]]] = {
    "event types": _event_types, "times": _times, "seed": _seed, "order": _order, "status": _status,
    "learning rate": _learning_rate, "samples": _samples,
}
