"""What one version of the benchmark's rules consists of.

A version is an instance of :class:`Rules`, in a module of its own; a later one says what it changes with
``dataclasses.replace``. Formulas that depend on the batch are methods here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Rules:
    """One version of the rules of one benchmark. ``batch`` is rollouts per step throughout."""

    name: str
    benchmark: str
    """Its name in MLLOG."""
    checker: str
    """The version of ``mlperf-logging`` whose checker knows these rules."""
    checker_ruleset: str
    """What that checker calls them."""
    vocab_size: int
    """Tokens in the vocabulary of the benchmark's policy."""
    k: int
    validation_tasks: int
    target: Fraction
    """Share of validation tasks that one of k rollouts must solve, at least."""
    reference_batch: int
    learning_rate_there: float
    clip_norm_there: float
    max_steps: Mapping[int, int]
    """By batch, where the rules name one."""
    profile: Mapping[str, Any]
    """Values that a profile must have, by dotted key."""
    facts: Mapping[str, Any]
    """What a trainer must say of itself, by MLLOG key."""
    fixed_keys: frozenset[str]
    """MLLOG keys whose values the benchmark fixes: only these may be refused in the log of something else."""

    def first_validation(self, batch: int) -> int:
        """The step after which validation begins; from there on every step is validated."""
        return math.ceil(Fraction(5, 2) + Fraction(15 * self.reference_batch, batch))

    def learning_rate(self, batch: int) -> float:
        return self.learning_rate_there * math.sqrt(batch / self.reference_batch)

    def clip_norm(self, batch: int) -> float:
        return self.clip_norm_there * math.sqrt(self.reference_batch / batch)

    def needed(self, tasks: int) -> int:
        """How many of ``tasks`` must be solved."""
        return math.ceil(self.target * tasks)
