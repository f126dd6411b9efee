"""What one version of the benchmark's rules consists of.

A version is an instance of :class:`Rules`, in a module of its own: some numbers, and a :class:`Requirement` for each
value that a profile, a part or the policy's checkpoint must have. Another version says what it changes with
``dataclasses.replace`` and :func:`amended`. Formulas that depend on the batch are methods here; a requirement whose
value follows one names it with :class:`Formula`.

``batch`` is rollouts per step throughout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fractions import Fraction
from itertools import pairwise
from typing import Any


class Division(StrEnum):
    """The benchmark's divisions: one repeats the reference, the other may train otherwise towards the same target."""

    CLOSED = "closed"
    OPEN = "open"


BOTH = frozenset(Division)
CLOSED = frozenset({Division.CLOSED})


class Bound(StrEnum):
    """What a value may be: the one that is wanted; that or more; anything, the reference's being there to compare."""

    EQUAL = "equal"
    AT_LEAST = "at_least"
    REFERENCE = "reference"


class Nothing(Enum):
    """Where there is no value: nobody says one, or the rules want none."""

    SAID = "not said"
    WANTED = "free"


@dataclass(frozen=True)
class Formula:
    """A wanted value that follows from the batch; ``words`` is it for people."""

    of: Callable[[Rules, int], Any]
    words: str


@dataclass(frozen=True)
class Requirement:
    """One thing that must hold before a run.

    ``at`` are places where the value may be said, the first that has it counts: a dotted key of the profile,
    ``facts.ROLE.NAME`` for what a part says of itself, ``model.NAME`` for the checkpoint's config. ``key`` is the
    profile's key that decides it, where that is none of these. ``unset`` is the value where no place has it, ``also``
    are further values that will do. ``given`` names an earlier requirement without which this one is not asked about.
    ``mllog`` is the key under which a log tells the value."""

    rule: str
    at: tuple[str, ...]
    wanted: Any
    why: str
    key: str = ""
    fix: str = ""
    bound: Bound = Bound.EQUAL
    divisions: frozenset[Division] = BOTH
    tolerance: float = 0.0
    also: tuple[Any, ...] = ()
    unset: Any = Nothing.SAID
    given: str = ""
    mllog: str = ""

    def wanted_at(self, rules: Rules, batch: int) -> Any:
        """The wanted value for a batch; ``Nothing.WANTED`` where the rules name none."""
        return self.wanted.of(rules, batch) if isinstance(self.wanted, Formula) else self.wanted


@dataclass(frozen=True)
class Rules:
    """One version of the rules of one benchmark."""

    name: str
    benchmark: str
    """Its name in MLLOG."""
    summary: str
    checker: str
    """The version of ``mlperf-logging`` whose checker knows these rules."""
    checker_ruleset: str
    """What that checker calls them."""
    model: str
    """The policy that every run starts from."""
    revisions: tuple[str, ...]
    """Revisions of it that hold the same weights, tokenizer and config; the first is the benchmark's own."""
    k: int
    training_tasks: int
    validation_tasks: int
    target: Fraction
    """Share of validation tasks that one of k rollouts must solve, at least."""
    reference_batch: int
    learning_rate_there: float
    clip_norm_there: float
    max_steps: Mapping[int, int]
    """By batch, where the rules name one: the batches of the benchmark's table."""
    reference_samples: Mapping[int, int]
    """By batch, how many samples the reference needed to converge, where the checker knows."""
    logged: frozenset[str]
    """MLLOG keys that a log must hold under these rules and need not under some other version."""
    log_only: Mapping[str, Any]
    """MLLOG keys with one possible value that no setting decides."""
    requirements: tuple[Requirement, ...]

    @property
    def fixed_keys(self) -> frozenset[str]:
        """MLLOG keys whose values the benchmark fixes: only these may be refused in the log of something else."""
        return frozenset({*self.log_only, *(item.mllog for item in self.requirements if item.mllog)})

    def value(self, rule: str, batch: int | None = None) -> Any:
        """What a requirement wants, at the reference's batch unless told another."""
        found = next(item for item in self.requirements if item.rule == rule)
        return found.wanted_at(self, batch or self.reference_batch)

    @property
    def batches(self) -> tuple[int, ...]:
        """Those of the benchmark's table."""
        return tuple(self.max_steps)

    def first_validation(self, batch: int) -> int:
        """The step after which validation begins; from there on every step is validated."""
        return math.ceil(Fraction(5, 2) + Fraction(15 * self.reference_batch, batch))

    def learning_rate(self, batch: int) -> float:
        return self.learning_rate_there * math.sqrt(batch / self.reference_batch)

    def clip_norm(self, batch: int) -> float:
        return self.clip_norm_there * math.sqrt(self.reference_batch / batch)

    def steps(self, batch: int) -> int | Nothing:
        """Steps after which a run ends without having met the target."""
        return self.max_steps.get(batch, Nothing.WANTED)

    def needed(self, tasks: int) -> int:
        """How many of ``tasks`` must be solved."""
        return math.ceil(self.target * tasks)

    def samples_to_converge(self, batch: int) -> Fraction | None:
        """What the checker compares a run's convergence with: the reference's samples at this batch, between two of its
        batches interpolated, below all of them those of the least; None above all of them."""
        known = sorted(self.reference_samples.items())
        if batch <= known[0][0]:
            return Fraction(known[0][1])
        for (low, before), (high, after) in pairwise(known):
            if batch <= high:
                return before + Fraction((after - before) * (batch - low), high - low)
        return None


def amended(requirements: Iterable[Requirement], changes: Mapping[str, Mapping[str, Any]] | None = None, *,
            without: Collection[str] = (), more: Iterable[Requirement] = ()) -> tuple[Requirement, ...]:
    """Another version's requirements: ``changes`` maps names of rules to the fields that differ. Names have to be those
    of ``requirements``, so that no change is lost, and those of ``more`` have to be new."""
    before = {item.rule: item for item in requirements}
    new = {item.rule: item for item in more}
    if wrong := {*(changes or {}), *without} - before.keys() | (before.keys() & new.keys()):
        raise ValueError(f"not to be changed, or there already: {', '.join(sorted(wrong))}")
    after = {**before, **{rule: replace(before[rule], **fields) for rule, fields in (changes or {}).items()}, **new}
    return tuple(item for rule, item in after.items() if rule not in without)
