"""Rewards of rollouts, and what their ends say. A missing reward is NaN in arrays and never counts as 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import Boundary, RolloutShareExceeded, Trajectory
from grpo_bench.contract.blame import to_blame


@dataclass(frozen=True, slots=True)
class RewardSummary:
    """Rollouts, how many of them are samples, the samples' mean reward (None without any), and how many rollouts are no
    samples by cause."""

    rollouts: int
    samples: int
    mean: float | None
    causes: Mapping[str, int]

    @property
    def failed_share(self) -> float:
        return 1 - self.samples / self.rollouts if self.rollouts else 0.0


def rewards_of(trajectories: Sequence[Trajectory]) -> npt.NDArray[np.float64]:
    """Rewards [B], NaN for a rollout that is no sample."""
    return np.array([np.nan if trajectory.reward is None or not trajectory.end.is_sample else trajectory.reward
                     for trajectory in trajectories], np.float64)


def summarize(trajectories: Sequence[Trajectory]) -> RewardSummary:
    rewards = rewards_of(trajectories)
    present = rewards[~np.isnan(rewards)]
    return RewardSummary(
        rollouts=len(trajectories), samples=len(present), mean=float(present.mean()) if len(present) else None,
        causes=dict(Counter(trajectory.failure.cause.value for trajectory in trajectories if trajectory.failure)),
    )


def check_failed_share(trajectories: Sequence[Trajectory], limit: float, step: int) -> RewardSummary:
    """The summary; RolloutShareExceeded where more than ``limit`` of the step's rollouts are no samples."""
    summary = summarize(trajectories)
    if summary.failed_share > limit:
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(summary.causes.items()))
        most = max(summary.causes, key=summary.causes.__getitem__, default=None)
        first = next((item for item in trajectories if item.failure and item.failure.cause == most), None)
        failure = first.failure if first else None
        roles = to_blame(failure.cause, first.durations) if first and failure else ()
        example = f"; such as: {failure.message}" if failure else ""
        raise RolloutShareExceeded(
            f"{summary.rollouts - summary.samples} of {summary.rollouts} rollouts ended without a sample, more than "
            f"the allowed share of {limit:g} (by cause: {causes or 'unknown'}){example}",
            hint="mend the cause, or raise limits.max_failed_share or limits.rollout_retries",
            boundary=Boundary(role=roles[0].value if roles else None, task=first.task_id if first else None, step=step),
        )
    return summary
