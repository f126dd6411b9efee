"""Rewards of rollouts, and what their ends say. A missing reward is NaN in arrays and never counts as 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import Boundary, Cause, Role, RolloutShareExceeded, Trajectory

_BLAMED = {Cause.SANDBOX_START: Role.ENVIRONMENT, Cause.ENVIRONMENT: Role.ENVIRONMENT, Cause.SCORE: Role.ENVIRONMENT,
           Cause.AGENT: Role.AGENT, Cause.DEADLINE: Role.AGENT, Cause.GENERATOR: Role.GENERATOR}
"""Whose part a failed hop is. A rollout's own deadline is the agent's: the hops beside it have theirs."""

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
        failed = [(item.task_id, item.failure) for item in trajectories if item.failure and item.failure.cause == most]
        task, failure = failed[0] if failed else (None, None)
        role = _BLAMED.get(failure.cause) if failure else None
        example = f"; such as: {failure.message}" if failure else ""
        raise RolloutShareExceeded(
            f"{summary.rollouts - summary.samples} of {summary.rollouts} rollouts ended without a sample, more than "
            f"the allowed share of {limit:g} (by cause: {causes or 'unknown'}){example}",
            hint="mend the cause, or raise limits.max_failed_share or limits.rollout_retries",
            boundary=Boundary(role=role.value if role else None, task=task, step=step),
        )
    return summary
