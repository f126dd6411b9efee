"""Advantages of rollouts against the others of their group.

Baseline b and spread s come from a group's *voters*: with leave-one-out the other voters, else all of them. s is the
unbiased standard deviation (ddof 1), computed in two passes in float64, so that equal rewards give exactly 0.
A = (r - b) / (s + 1e-6) where s > 0, else r - b; the clamp comes last. Groups are named by explicit ids; neither
position nor prompt text matters. A rollout without a reward (NaN) has no advantage and never votes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import AdvantageSettings

Doubles = npt.NDArray[np.float64]
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class AdvantageResult:
    """Per rollout [B], float64. ``advantage`` is 0 for a rollout without a reward, whose other values are NaN."""

    baseline: Doubles
    std: Doubles
    advantage: Doubles


def advantages(rewards: npt.ArrayLike, groups: npt.ArrayLike, settings: AdvantageSettings,
               valid: npt.ArrayLike | None = None) -> AdvantageResult:
    """Advantages [B] of ``rewards`` [B] (NaN: none) in ``groups`` [B].

    ``valid`` [B] is True on rollouts that train; only with voters ``exclude_masked`` it decides who votes.
    """
    reward = np.asarray(rewards, np.float64)
    group = np.asarray(groups)
    votes = np.isfinite(reward)
    if valid is not None and settings.voters == "exclude_masked":
        votes &= np.asarray(valid, np.bool_)
    baseline = np.full(reward.shape, np.nan)
    std = np.full(reward.shape, np.nan)
    for name in np.unique(group):
        members = np.flatnonzero((group == name) & np.isfinite(reward))
        baseline[members], std[members] = _compare(reward[members], votes[members], settings.leave_one_out)
    difference = reward - baseline
    divided = difference / (std + EPS) if settings.normalize else difference
    advantage = np.where(std > 0, divided, difference)
    advantage = np.where(np.isnan(advantage), 0.0, advantage)
    if settings.clamp is not None:
        advantage = np.clip(advantage, *settings.clamp)
    return AdvantageResult(baseline, std, advantage)


def _compare(reward: Doubles, votes: npt.NDArray[np.bool_], leave_one_out: bool) -> tuple[Doubles, Doubles]:
    """Baseline and std of one group's members [n], each with a reward."""
    count = int(votes.sum())
    if count <= 1:
        return reward.copy(), np.zeros_like(reward)
    if not leave_one_out:
        centre, spread = _moments(reward[votes])
        return np.full_like(reward, centre), np.full_like(reward, spread)
    pairs = []
    for index in range(len(reward)):
        others = votes.copy()
        others[index] = False
        pairs.append(_moments(reward[others]))
    baseline, std = np.array(pairs).T
    return baseline, std


def _moments(values: Doubles) -> tuple[float, float]:
    """Mean and ddof-1 std of one value or more; equal values are exact."""
    if (values == values[0]).all():
        return float(values[0]), 0.0
    centre = values.mean()
    return float(centre), float(np.sqrt(np.square(values - centre).sum() / (len(values) - 1)))
