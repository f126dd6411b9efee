"""What a run waits for, found by simulation: rollouts, and the prompts that stall.

The logs say how long each step waited, not how long a rollout took. So guesses are simulated by the engine itself,
under the conditions of the logs, and moved by what the simulated waits lack or have too much: first by more than half
of it, then by less and less, under other seeds each time, so that no guess fits the chance of single seeds. The answer
is the mean of the later guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np
from reference_logs import Replica

from grpo_bench_sim.reading import RunTimes

_FIRST_SEED = 1000
_FIRST_GAIN = 0.6
_QUIET = 0.2
"""The quantile of waits that no stalled prompt decides."""
_LONGEST = 2.8
"""How many standard deviations the longest of a step's rollouts is beyond the median, about."""
_RANGE = 1.693
"""The range of three normal values, in standard deviations, in the mean."""
_APART = 100.0
"""Seconds that a wait is above others of its step where something stalled of a sudden."""


@dataclass(frozen=True, slots=True)
class Waits:
    """``seconds`` and ``sigma`` are a rollout's, ``order`` the stall of each block of prompts, of which the last
    ``paired`` are in no logs of the smallest batch, ``first`` what goes by before the first rollout."""

    seconds: float
    sigma: float
    order: tuple[float, ...]
    first: float
    paired: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """The medians of one batch: of each step's wait from the second to the last, a low quantile of all these waits, of
    validations, and of the first step."""

    by_step: tuple[float, ...]
    quiet: float
    validation: float
    first: float


Run = Callable[[Waits, int, Sequence[int]], Sequence[RunTimes]]
"""Simulates replicas of a batch under the given seeds."""


def logged(replicas: Sequence[Replica]) -> Seen:
    return _seen([[*(step.exposed for step in replica.steps[1:]), replica.last_exposed] for replica in replicas],
                 [replica.validation for replica in replicas], [replica.first for replica in replicas])


def simulated(runs: Sequence[RunTimes]) -> Seen:
    return _seen([[step.exposed for step in run.steps[1:]] for run in runs],
                 [seconds for run in runs for _, seconds in run.validations], [run.first for run in runs])


def _seen(waits: Sequence[Sequence[float]], validations: Sequence[float], first: Sequence[float]) -> Seen:
    return Seen(tuple(map(float, np.median(waits, axis=0))), float(np.quantile(np.ravel(waits), _QUIET)),
                median(validations), median(first))


def first_guess(target: Mapping[int, Seen]) -> Waits:
    """By the smaller batch, of which a step is a block of prompts: stalls are what waits are above the quiet ones."""
    seen = target[min(target)]
    most = max(batch // min(target) * (len(found.by_step) + 2) for batch, found in target.items())
    stalls = [max(0.0, wait - seen.quiet) for wait in seen.by_step]
    paired = most - len(stalls) - 2
    return Waits(seconds=seen.validation / 5, sigma=0.15, first=60.0, paired=paired,
                 order=(0.0, 0.0, *stalls, *[0.0] * paired))


def fitted(target: Mapping[int, Seen], run: Run, rounds: int, seeds: int) -> Waits:
    """``target`` by batch. ``rounds`` guesses are simulated, each with so many seeds."""
    guess, guesses = first_guess(target), []
    for number in range(rounds):
        chosen = range(_FIRST_SEED + number * seeds, _FIRST_SEED + (number + 1) * seeds)
        found = {batch: simulated(run(guess, batch, chosen)) for batch in target}
        guess = moved(guess, target, found, _FIRST_GAIN / (1 + number / 4))
        guesses.append(guess)
    return _mean(guesses[rounds // 2:])


def moved(guess: Waits, target: Mapping[int, Seen], found: Mapping[int, Seen], gain: float) -> Waits:
    """The next guess. A rollout is as long as validations say; how much rollouts differ is told by the quiet waits, at
    which nothing is to stall, and stalls by what is left."""
    slower = fmean(math.log(seen.validation / found[batch].validation) for batch, seen in target.items())
    quiet = fmean(seen.quiet - found[batch].quiet for batch, seen in target.items()) + float(
        np.quantile(guess.order[2:], _QUIET))
    lacks = {batch: [a - b - quiet for a, b in zip(seen.by_step, found[batch].by_step, strict=True)]
             for batch, seen in target.items()}
    longest = guess.seconds * math.exp(_LONGEST * guess.sigma)
    return replace(
        guess, seconds=guess.seconds * math.exp(gain * slower),
        sigma=min(0.6, max(0.02, guess.sigma + gain * quiet / (_LONGEST * longest))),
        order=tuple(max(0.0, stall + gain * _lack(block, guess.order, lacks))
                    for block, stall in enumerate(guess.order)),
        first=max(0.0, guess.first + gain * fmean(seen.first - found[batch].first for batch, seen in target.items())))


def _lack(block: int, order: Sequence[float], lacks: Mapping[int, Sequence[float]]) -> float:
    """Seconds that the waits for a block of prompts are short of: the mean over the batches where it is the slowest of
    its step, of equal ones the first, or, where these are far apart, the least, since what stalls of a sudden makes no
    wait shorter. A step waits for the prompts of the next one; those of the first two are hidden by how long the first
    one takes."""
    smallest = min(lacks)
    said = []
    for batch, steps in lacks.items():
        blocks = batch // smallest
        place = block // blocks - 2
        beside = range(block // blocks * blocks, min((block // blocks + 1) * blocks, len(order)))
        if 0 <= place < len(steps) and block == max(beside, key=order.__getitem__):
            said.append(steps[place])
    return 0.0 if not said else fmean(said) if max(said) - min(said) < _APART else min(said)


def _mean(guesses: Sequence[Waits]) -> Waits:
    return replace(guesses[0], seconds=fmean(guess.seconds for guess in guesses),
                   sigma=fmean(guess.sigma for guess in guesses), first=fmean(guess.first for guess in guesses),
                   order=tuple(map(fmean, zip(*(guess.order for guess in guesses), strict=True))))


def validated(target: Sequence[float], run: Callable[[float], Sequence[float]], guess: Waits, rounds: int) -> float:
    """Median seconds of a rollout with which validations, as ``run`` simulates them under the same seeds each time,
    have the mean of the ``target``."""
    seconds = guess.seconds
    for _ in range(rounds):
        seconds *= fmean(target) / fmean(run(seconds))
    return seconds


def sudden(replicas: Mapping[int, Sequence[Replica]]) -> tuple[float, list[float]]:
    """The share of rollouts that stalled of a sudden, so long that a step's wait shows it, and how long they did: by
    what the wait is above its step's median over the replicas, and by what goes by before anybody waits."""
    stalls, rollouts = [], 0
    for batch, found in replicas.items():
        waits = np.array([[step.exposed for step in replica.steps[1:]] for replica in found])
        busy = median(step.wall - step.exposed for replica in found for step in replica.steps[1:])
        excess = waits - np.median(waits, axis=0)
        stalls += [float(value) + busy for value in excess[excess > _APART]]
        rollouts += batch * waits.size
    return len(stalls) / rollouts, stalls


def order_spread(replicas: Mapping[int, Sequence[Replica]]) -> float:
    """How much the waits for the slower half of the steps differ between replicas, as a standard deviation relative to
    them: of three replicas by their range."""
    found = []
    for several in replicas.values():
        waits = np.array([[step.exposed for step in replica.steps[1:]] for replica in several])
        middle = np.median(waits, axis=0)
        found += list((np.ptp(waits, axis=0) / _RANGE / middle)[middle > np.median(middle)])
    return float(np.median(found))
