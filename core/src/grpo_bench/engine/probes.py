"""The sequences that both sides are asked about after a refit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..contract import Group, Ids
from ..registry import Plan
from .seeds import branch

_ROWS, _LENGTH = 4, 48
_KEPT_ROWS = 16
"""Sequences that are kept for ``refit.probe_growth``: enough tokens that rounding averages out."""


def random_probes(plan: Plan) -> list[Ids]:
    """The same all through a run."""
    facts = plan.checkpoint
    random = np.random.default_rng(branch(plan.seed, "probe"))
    length = min(_LENGTH, facts.max_context)
    rows = _ROWS if plan.profile.refit.probe_growth is None else _KEPT_ROWS
    return [random.integers(0, facts.vocab_size, length).astype(np.int32) for _ in range(rows)]


def sampled_probes(groups: Sequence[Group]) -> list[Ids]:
    """The first sequence of some groups: what the policy really visits."""
    sequences = [trajectory.sequences[0].ids for group in groups for trajectory in group.trajectories[:1]
                 if trajectory.sequences]
    return sequences[:_ROWS]
