"""How fast the reference was: what ``reference_pace.json`` keeps of its public runs, for a profile like it.

A profile is like the reference where it has its policy, its limits and its layout of trainer and generator; the batch
is free. Batches that the reference did not run lie on the straight line through those that it did, with the widest
spread of these. It wrote no checkpoints: what one takes is the size of the weights at an assumed speed, and a deferred
evaluation reads them at the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.resources import files
from statistics import linear_regression
from typing import Any

from grpo_bench.contract import Pace

Range = tuple[float, float]


def pace(profile: Mapping[str, Any]) -> Pace | None:
    """The reference's pace; None where the profile is something else."""
    known = json.loads(files("grpo_bench_rules_mlperf").joinpath("reference_pace.json").read_text("utf-8"))
    if any(_value(profile, key) != value for key, value in known["like"].items()):
        return None
    grpo, validation = profile["grpo"], profile["validation"]
    batch = grpo["prompts_per_step"] * grpo["generations_per_prompt"]
    slow, fast = known["assumed_bytes_per_s"]
    checkpoint = known["weights_bytes"] / fast, known["weights_bytes"] / slow
    share = (validation["max_tasks"] or 0) * validation["k"] / known["rollouts_of_a_validation"] or 1.0
    least, most = (share * seconds for seconds in known["validation_s"])
    if validation["deferred"]:
        least, most = least + checkpoint[0], most + checkpoint[1]
    return Pace(start_s=tuple(known["start_s"]), first_step_s=_at(batch, known["batches"], "first_step_s"),
                step_s=_at(batch, known["batches"], "step_s"), checkpoint_s=checkpoint, validation_s=(least, most),
                wall_s=known["wall_s"], source=_source(known, batch))


def _value(profile: Mapping[str, Any], key: str) -> Any:
    return reduce(lambda table, name: table.get(name, {}), key.split("."), profile)


def _at(batch: int, batches: Mapping[str, Mapping[str, Sequence[float]]], name: str) -> Range:
    """Least and most at a batch."""
    if (found := batches.get(str(batch))) is not None:
        return found[name][0], found[name][2]
    measured = [row[name] for row in batches.values()]
    slope, intercept = linear_regression(list(map(float, batches)), [mean for _, mean, _ in measured])
    mean = slope * batch + intercept
    return mean * min(least / of for least, of, _ in measured), mean * max(most / of for _, of, most in measured)


def _source(known: Mapping[str, Any], batch: int) -> str:
    measured = sorted(map(int, known["batches"]))
    apart = "" if batch in measured else (
        f"; batch {batch} is on the straight line through {' and '.join(map(str, measured))}, "
        + ("between them" if measured[0] < batch < measured[-1] else "beyond them"))
    slow, fast = (speed / 1e9 for speed in known["assumed_bytes_per_s"])
    return (f"{known['source']}, read {known['date']}{apart}; a checkpoint is {known['weights_bytes'] / 1e9:.0f} GB, "
            f"assumed to be written and read at {slow:g} to {fast:g} GB/s")
