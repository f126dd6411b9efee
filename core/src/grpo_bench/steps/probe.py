"""What the probe after a refit shows.

Trainer and generator give the log-probabilities of the same sequences. Two sides that compute in float32 agree token by
token, and the largest difference is held against ``refit.probe_bound``. A generator in bfloat16 is off by up to 1 at
single tokens, by rounding alone, and the largest of these is luck. There, with ``refit.probe_growth``, two questions
are asked about sequences that stay the same all through a run:

*Is it as far off as it was at first?* The distance is the mean absolute difference over all their tokens, which
rounding moves little. What was far off at the first refit for a reason other than rounding stays unseen.

*Did it follow?* The trainer's log-probabilities changed since the refit before, and the generator's should have changed
alike: rounding is nearly the same before and after, so most of it is gone from the change. The least-squares share of
the trainer's change that is found in the generator's is 0 where the old weights stayed and near 1 where the new ones
arrived; less where single steps are smaller than bfloat16 can tell apart, but still well above 0. It is believed where
its standard error is small; a generator that gives the old numbers bit for bit has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import Floats, RefitError
from grpo_bench.contract.values import Ids

ROUNDING = 1e-5
"""Differences and changes below this are float32's own."""
LEAST = 0.25
"""Share of the trainer's change that a generator with the new weights shows at least."""
SURE = LEAST / 2.5
"""Largest standard error of a share that is believed."""
_SHOWN = 3

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answers:
    """Log-probabilities [N] by either side of the tokens of some sequences, the first of each left out. ``starts`` are
    the places where sequences begin."""

    trainer: Doubles
    generator: Doubles
    starts: npt.NDArray[np.int64]

    @property
    def difference(self) -> float:
        """Largest absolute difference; NaN where either has one."""
        return float(np.abs(self.trainer - self.generator).max(initial=0.0))

    @property
    def distance(self) -> float:
        """Mean absolute difference."""
        return float(np.abs(self.trainer - self.generator).mean()) if len(self.trainer) else 0.0

    def first(self, sequences: int) -> Answers:
        """Those of the first so many sequences."""
        stop = int(self.starts[sequences]) if sequences < len(self.starts) else len(self.trainer)
        return Answers(self.trainer[:stop], self.generator[:stop], self.starts[:sequences])

    def worst(self) -> str:
        """Where they differ most, with what is around it."""
        apart = np.abs(self.trainer - self.generator)
        if not len(apart):
            return "nothing was compared"
        at = int(np.argmax(np.where(np.isnan(apart), np.inf, apart)))
        sequence = int(np.searchsorted(self.starts, at, side="right")) - 1
        start = int(self.starts[sequence])
        shown = slice(max(start, at - _SHOWN), at + _SHOWN + 1)
        return (f"most at token {at - start + 1} of sequence {sequence}: around it the trainer has "
                f"{_numbers(self.trainer[shown])}, the generator {_numbers(self.generator[shown])}")

    def __str__(self) -> str:
        lines = [f"{side}, sequence {number}: {_numbers(values)}"
                 for side, vector in (("trainer", self.trainer), ("generator", self.generator))
                 for number, values in enumerate(np.split(vector, self.starts[1:]))]
        return "\n".join(lines)


def answers(sequences: Sequence[Ids], trainer: Floats, generator: Sequence[Floats]) -> Answers:
    """What both sides said about ``sequences``: [N] of the trainer, a vector for each sequence of the generator."""
    ours = np.asarray(trainer, np.float64)
    theirs = np.concatenate([np.asarray(part, np.float64) for part in generator] or [np.zeros(0)])
    if ours.shape != theirs.shape:
        raise RefitError(f"the probe has {len(ours)} log-probabilities from the trainer and {len(theirs)} from the "
                         "generator")
    starts = np.cumsum([0, *(len(sequence) for sequence in sequences)], dtype=np.int64)[:-1]
    compared = np.ones(len(ours), np.bool_)
    compared[starts] = False
    return Answers(ours[compared], theirs[compared], starts - np.arange(len(starts)))


@dataclass(frozen=True, slots=True)
class Followed:
    """The share of the trainer's change that the generator's log-probabilities show, its standard error, and the
    trainer's mean absolute change."""

    share: float
    error: float
    change: float

    @property
    def sure(self) -> bool:
        return self.error <= SURE


def followed(before: Answers, after: Answers) -> Followed | None:
    """How the generator followed the trainer between two refits; None where the trainer stayed where it was."""
    moved, came = after.trainer - before.trainer, after.generator - before.generator
    change = float(np.abs(moved).mean()) if len(moved) else 0.0
    if change <= ROUNDING:
        return None
    length = float(moved @ moved)
    share = float(came @ moved) / length
    left = came - share * moved
    return Followed(share, float(np.sqrt(left @ left / max(1, len(moved) - 1) / length)), change)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the probe of one refit showed: the largest difference, and for ``probe_growth`` the distance of the kept
    sequences and how the generator followed."""

    difference: float
    distance: float | None = None
    followed: Followed | None = None


@dataclass
class Probe:
    """The probe of a run. ``bound`` and ``growth`` are the settings, ``kept`` the sequences that stay the same,
    ``sampled`` those of late. ``first`` is the distance of the first refit; ``said`` is what was said at the last one,
    ``last`` what was said of the sequences that are kept."""

    bound: float | None
    growth: float | None = None
    kept: Sequence[Ids] = ()
    sampled: Sequence[Ids] = ()
    first: float | None = None
    last: Answers | None = field(default=None, repr=False)
    said: Answers | None = field(default=None, repr=False)

    @property
    def sequences(self) -> list[Ids]:
        """What to ask both sides about."""
        return [*self.kept, *self.sampled] if self.growth is not None else list(self.sampled or self.kept)

    def judge(self, version: int, said: Answers) -> Verdict:
        """RefitError where the weights of ``version`` did not arrive; both vectors are in its notes."""
        try:
            verdict = self._judged(version, said)
        except RefitError as error:
            error.add_note(str(said))
            raise
        self.said = said
        return verdict

    def _judged(self, version: int, said: Answers) -> Verdict:
        if self.bound is not None and not said.difference <= self.bound:
            raise RefitError(
                f"the generator's log-probabilities differ from the trainer's by {said.difference:.3g}, more than "
                f"{self.bound:g}, after the refit to version {version}",
                hint=f"{said.worst()}; all are in engine.log; the weights did not arrive as sent; refit.probe_bound is "
                     "the limit")
        if self.growth is None:
            return Verdict(said.difference)
        kept = said.first(len(self.kept))
        distance, first = kept.distance, self.first
        limit = np.inf if first is None else max(self.growth * first, ROUNDING)
        if not (np.isfinite(distance) and distance <= limit):
            more = "" if first is None else f", and by {first:.3g} at the first refit"
            raise RefitError(
                f"the generator's log-probabilities differ from the trainer's by {distance:.3g} on average after the "
                f"refit to version {version}{more}",
                hint=f"{kept.worst()}; all are in engine.log; refit.probe_growth = {self.growth:g} times is the limit")
        if np.isnan(said.difference):
            raise RefitError(f"a log-probability is NaN after the refit to version {version}",
                             hint=f"{said.worst()}; all are in engine.log")
        found = followed(self.last, kept) if self.last is not None else None
        if found is not None and found.sure and found.share < LEAST:
            raise RefitError(
                f"the generator did not follow the trainer to version {version}: the trainer's log-probabilities "
                f"changed by {found.change:.3g} on average, and {found.share:.0%} of that is seen in the generator's",
                hint=f"the refit left its old weights in place; {kept.worst()}; all are in engine.log")
        self.first, self.last = distance if first is None else first, kept
        return Verdict(said.difference, distance, found)


def _numbers(values: Doubles) -> str:
    return f"[{', '.join(f'{value:.4g}' for value in values)}]"
