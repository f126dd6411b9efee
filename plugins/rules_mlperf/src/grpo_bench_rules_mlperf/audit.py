"""What the official checker does not look at, in any MLLOG of this benchmark.

A log tells of one run: set-up, then blocks of training and evaluations in turn, then its end. Each check here is about
one thing that would be wrong in a log whoever wrote it; ``audit`` returns one finding for each that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from grpo_bench.contract import Finding

from .form import END, POINT, START, Line, parse
from .rules import Rules

MAX_SEED = 2**32 - 1
Check = Callable[[Sequence[Line]], Iterator[str]]
_ORDER = ("cache_clear", "init_start", "init_stop", "run_start", "run_stop")
_NEXT = {"run_start": ("block_start", "eval_start"), "block_start": ("block_stop",), "block_stop": ("eval_start",),
         "eval_start": ("eval_accuracy",), "eval_accuracy": ("eval_stop",), "eval_stop": ("block_start",),
         "run_stop": ()}
"""What may come next among the lines of a run, its end aside."""
_ENDS_AFTER = ("block_stop", "eval_stop")


def audit(text: str, *, strict: Rules | None = None) -> tuple[Finding, ...]:
    """All that is wrong with a log; nothing where it is sound. ``strict``: evaluations must be those of these rules."""
    try:
        lines = _lines(text)
    except ValueError as error:
        return (Finding("mllog form", False, str(error)),)
    checks = [*_CHECKS, *([_series_of(strict)] if strict is not None else [])]
    return tuple(Finding(f"mllog {_name(check)}", False, message) for check in checks for message in check(lines))


def _lines(text: str) -> list[Line]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found.append(parse(line))
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def _event_types(lines: Sequence[Line]) -> Iterator[str]:
    for line in lines:
        wanted = START if line.key.endswith("_start") else END if line.key.endswith("_stop") else POINT
        if line.event_type != wanted:
            yield f"{line.key} is of type {line.event_type}, not {wanted}"


def _times(lines: Sequence[Line]) -> Iterator[str]:
    for before, after in pairwise(lines):
        if after.time_ms < before.time_ms:
            yield f"{after.key} is {before.time_ms - after.time_ms} ms before {before.key}, which it follows"


def _seed(lines: Sequence[Line]) -> Iterator[str]:
    seeds = _values(lines, "seed")
    if len(seeds) != 1:
        yield f"should be there once, is there {len(seeds)} times"
    elif type(seeds[0]) is not int or not 0 <= seeds[0] <= MAX_SEED:
        yield f"should be an integer between 0 and {MAX_SEED}, is {seeds[0]!r}"


def _order(lines: Sequence[Line]) -> Iterator[str]:
    keys = [line.key for line in lines]
    missing = [key for key in _ORDER if key not in keys]
    if missing:
        yield f"{', '.join(missing)} missing"
        return
    places = [keys.index(key) for key in _ORDER]
    yield from (f"{second} stands before {first}" for (first, a), (second, b) in pairwise(zip(_ORDER, places)) if b < a)
    run = [key for key in keys[keys.index("run_start"):] if key in _NEXT]
    for before, after in pairwise(run):
        if after != "run_stop" and after not in _NEXT[before]:
            yield f"{after} follows {before}"
        elif after == "run_stop" and before not in _ENDS_AFTER:
            yield f"the run stops after {before}"


def _status(lines: Sequence[Line]) -> Iterator[str]:
    target = next(iter(_values(lines, "target_accuracy")), None)
    passing = [_passes(line.value, target) for line in lines if line.key == "eval_accuracy"]
    for line in lines:
        if line.key == "run_stop":
            status = line.metadata.get("status")
            if status not in ("success", "aborted"):
                yield f"should be success or aborted, is {status!r}"
            elif (status == "success") != any(passing):
                yield f"is {status}, and {'an' if any(passing) else 'no'} evaluation reached the target"
    if True in passing[:-1]:
        yield "an evaluation follows the one that reached the target"


def _learning_rate(lines: Sequence[Line]) -> Iterator[str]:
    ends, bases = _values(lines, "opt_end_learning_rate"), _values(lines, "opt_base_learning_rate")
    if len(ends) != 1:
        yield f"opt_end_learning_rate should be there once, is there {len(ends)} times"
    elif "constant" in _values(lines, "opt_learning_rate_decay_schedule") and bases[:1] != ends:
        yield f"is constant, and ends at {ends[0]} where it should be {', '.join(map(str, bases))}"


def _samples(lines: Sequence[Line]) -> Iterator[str]:
    batch = next(iter(_values(lines, "global_batch_size")), None)
    if type(batch) is not int or batch < 1:
        yield f"global_batch_size should be an integer above 0, is {batch!r}"
        return
    counts = _sample_counts(lines)
    for line in lines:
        count = line.metadata.get("samples_count", 0)
        if type(count) is not int or count < 0 or count % batch:
            yield f"{line.key} at {count!r} samples, which is no number of steps of {batch}"
        elif line.metadata.get("step", count // batch) != count // batch:
            yield f"{line.key} at {count} samples in step {line.metadata['step']}"
    if all(type(count) is int for count in counts) and any(b <= a for a, b in pairwise(counts)):
        yield f"evaluations at {counts} samples do not go forward"


def _series_of(rules: Rules) -> Check:
    def _series(lines: Sequence[Line]) -> Iterator[str]:
        counts = _sample_counts(lines)
        batch = next((value for value in _values(lines, "global_batch_size") if type(value) is int and value > 0), None)
        wanted = [batch * (rules.first_validation(batch) + number) for number in range(len(counts))] if batch else []
        if counts != wanted:
            yield f"evaluations at {counts} samples, the rules want {wanted}"

    return _series


_CHECKS: tuple[Check, ...] = (_event_types, _times, _seed, _order, _status, _learning_rate, _samples)


def _name(check: Check) -> str:
    return getattr(check, "__name__", "").strip("_").replace("_", " ")


def _passes(value: Any, target: Any) -> bool:
    return all(type(number) in (int, float) for number in (value, target)) and value >= target


def _sample_counts(lines: Sequence[Line]) -> list[Any]:
    return [line.metadata.get("samples_count") for line in lines if line.key == "eval_accuracy"]


def _values(lines: Sequence[Line], key: str) -> list[Any]:
    return [line.value for line in lines if line.key == key]
