"""How long a run may take: the pace of runs like it, and what a profile asks for.

Times are ranges: the least that was seen, and the most. How often the target is missed before it is met decides the
rest: at best the first validation meets it, at worst only the last one, or none. What a policy learns is not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ..contract import Pace
from .profile import Profile


@dataclass(frozen=True, slots=True)
class Duration:
    """Seconds, at least and at most."""

    least: float
    most: float

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.least + other.least, self.most + other.most)


class Fit(StrEnum):
    """Whether something is over in the time that there is."""

    FITS = "fits"
    MAY_NOT = "may not fit"
    DOES_NOT = "does not fit"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a run's ``start``, of its ``training``, of writing ``checkpoints`` and of its ``evaluation``, which is
    every validation and, where it is deferred, another start. ``wall_s`` is how long such runs are given, 0 where
    nobody says; ``source`` says where the pace is from, ``assumed`` says of a part what it
    counts on."""

    start: Duration
    training: Duration
    checkpoints: Duration
    evaluation: Duration
    wall_s: float
    source: str
    assumed: Mapping[str, str]

    @property
    def until_trained(self) -> Duration:
        """All but the evaluation."""
        return self.start + self.training + self.checkpoints

    @property
    def whole(self) -> Duration:
        return self.until_trained + self.evaluation

    def to_json(self) -> dict[str, Any]:
        sums = {"until_trained": self.until_trained, "whole": self.whole}
        return {**asdict(self), **{name: asdict(sum_) for name, sum_ in sums.items()},
                "fit": {name: fit(sum_, self.wall_s).value for name, sum_ in sums.items()} if self.wall_s else {}}


def fit(needed: Duration, seconds: float) -> Fit:
    """Whether what takes ``needed`` is over after ``seconds``."""
    if needed.most <= seconds:
        return Fit.FITS
    return Fit.MAY_NOT if needed.least <= seconds else Fit.DOES_NOT


def estimated(pace: Pace, profile: Profile, due: Sequence[int]) -> Estimate:
    """The estimate for a profile that is validated after the steps ``due``."""
    last, validation = profile.grpo.max_steps, profile.validation
    stops = validation.target is not None
    soonest = due[0] if stops and due and not validation.deferred else last
    validations = len(due) + validation.at_start
    fewest = validation.at_start + 1 if stops and due else validations
    first, step = Duration(*pace.first_step_s), Duration(*pace.step_s)
    training = Duration(first.least + (soonest - 1) * step.least, first.most + (last - 1) * step.most)
    evaluation = _times(Duration(*pace.validation_s), fewest, validations)
    if validation.deferred and validations:
        evaluation += Duration(*pace.start_s)
    checkpoints = _times(Duration(*pace.checkpoint_s), _checkpoints(profile, due, soonest),
                         _checkpoints(profile, due, last))
    return Estimate(Duration(*pace.start_s), training, checkpoints, evaluation, pace.wall_s, pace.source,
                    _assumed(profile, due, soonest, fewest, validations))


def _times(one: Duration, fewest: int, most: int) -> Duration:
    return Duration(one.least * fewest, one.most * most)


def _checkpoints(profile: Profile, due: Sequence[int], last: int) -> int:
    """How many are written by a training that ends after step ``last``."""
    saved = [step for step in due if step <= last] if profile.validation.deferred else []
    period = profile.checkpoint.period
    return len(saved) + (last // period if period else 0) + (profile.checkpoint.final and last not in saved)


def _assumed(profile: Profile, due: Sequence[int], soonest: int, fewest: int, validations: int) -> dict[str, str]:
    last, validation = profile.grpo.max_steps, profile.validation
    words = {"training": f"to step {last}" if soonest == last else f"to step {soonest} at best, {last} at worst"}
    if most := _checkpoints(profile, due, last):
        full = ", each as long as the weights alone" if profile.checkpoint.period else ""
        words["checkpoints"] = f"{_between(_checkpoints(profile, due, soonest), most)} of them{full}"
    if validations:
        words["evaluation"] = _between(fewest, validations) + (
            " validations" if validations > 1 else " validation") + (
            ", after a start of its own" if validation.deferred else "") + (
            "; at best the first meets the target" if fewest < validations else "")
    return words


def _between(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"
