"""Estimates against the wall time of a job: what is refused, what is said.

A training that can be gone on with may take several jobs, and so may an evaluation in jobs of its own: nothing is
refused then.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_bench.contract import InputError

from .form import Evaluation, goes_on

if TYPE_CHECKING:
    from grpo_bench.registry import Plan
    from grpo_bench.registry.estimate import Duration


def judged(plan: Plan, minutes: int | None, evaluation: Evaluation) -> Iterator[str]:
    """Lines about the jobs' wall time; InputError where not even the least fits."""
    estimate = plan.estimate
    if estimate is None:
        yield "time: nobody has said how long runs like this take"
    if minutes is None:
        yield "time: the partition's own limit applies; set launch.minutes or --minutes"
    if estimate is None or minutes is None:
        return
    deferred = plan.profile.validation.deferred
    whole = evaluation is Evaluation.SAME or not deferred
    what = "training and evaluation take" if whole else "training takes"
    yield from _judged(what, estimate.whole if whole else estimate.until_trained, minutes, goes_on(plan),
                       _remedies(whole and deferred))
    if evaluation is Evaluation.DEPENDENT:
        yield from _judged("evaluation takes", estimate.evaluation, minutes, True, "")
    yield f"time: as of {estimate.source}"


def _judged(what: str, span: Duration, minutes: int, onward: bool, remedies: str) -> Iterator[str]:
    took = f"{what} {_minutes(span.least)} to {_minutes(span.most)} minutes, and a job has {minutes}"
    if span.most <= minutes * 60:
        yield f"time: {took}"
    elif onward:
        jobs = [math.ceil(seconds / 60 / minutes) for seconds in (span.least, span.most)]
        yield f"time: {took}: it goes on in a later start of the job, {jobs[0]} to {jobs[1]} in all"
    elif span.least <= minutes * 60:
        yield f"WARNING: {took}: it may be cut off, and what is cut off is lost; {remedies}"
    else:
        raise InputError(f"{took}: it cannot end in time", hint=remedies)


def _remedies(splittable: bool) -> str:
    split = ["--eval dependent evaluates in a job of its own, --eval none not at all"] if splittable else []
    return "; ".join([*split, "--minutes gives it more, where the partition does"])


def _minutes(seconds: float) -> int:
    return math.ceil(seconds / 60)
