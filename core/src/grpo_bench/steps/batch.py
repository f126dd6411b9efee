"""From finished groups to the batch an update consumes, in the contract's order.

    build_batch -> (log-probabilities, by the engine) -> apply_masks -> with_advantages -> (update, by the trainer)

Each step is a pure function that returns a new batch and a new report. Rows are training sequences; a rollout may own
several, all with its advantage. Rollouts that are no samples have no rows and no vote, and are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import (
    BatchError, Boundary, Floats, Group, GrpoSettings, Role, TrainBatch, Trajectory,
)

from .advantage import advantages
from .masks import MaskResult, rollout_mask, row_counts, sequence_logprob_error_mask
from .needs import loss_reads_prev


@dataclass(frozen=True, slots=True)
class BatchReport:
    """What is worth telling about a batch. B counts the rollouts that are samples.

    ``group_ids`` and ``rewards`` [B] are per sample, in the order that TrainBatch.rollout indexes. ``not_samples``
    counts the other rollouts by end, ``masked`` the rows by the reason that took them out, ``ages`` the samples by
    weight versions between their oldest token and the step's target. ``alarms`` maps a name to a message.
    """

    rollouts: int
    groups: int
    rows: int
    tokens: int
    sampled_tokens: int
    group_ids: npt.NDArray[np.int64]
    rewards: npt.NDArray[np.float64]
    not_samples: Mapping[str, int]
    ages: Mapping[int, int]
    masked: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    zero_advantage_groups: int = 0
    alarms: Mapping[str, str] = field(default_factory=dict)

    @property
    def reward_mean(self) -> float | None:
        """Mean over samples; None where there is none."""
        return float(self.rewards.mean()) if len(self.rewards) else None


def build_batch(step: int, groups: Sequence[Group], grpo: GrpoSettings) -> tuple[TrainBatch, BatchReport]:
    """All rows of ``groups`` with the masks that are known before any log-probability; advantages are 0 yet."""
    kept = [(group, trajectory) for group in groups for trajectory in group.trajectories
            if trajectory.end.is_sample and trajectory.reward is not None]
    samples = [trajectory for _, trajectory in kept]
    sequences = [(index, sequence) for index, trajectory in enumerate(samples) for sequence in trajectory.sequences]
    rollout = np.array([index for index, _ in sequences], np.int32)
    rewards = np.array([trajectory.reward for trajectory in samples], np.float64)
    lengths = [len(sequence.ids) for _, sequence in sequences]
    masks = rollout_mask(samples, rollout, overlong_filter=grpo.masks.overlong_filter)
    batch = _counted(TrainBatch(
        step=step, ids=_joined([sequence.ids for _, sequence in sequences], np.int32),
        offsets=np.cumsum([0, *lengths], dtype=np.int64), rollout=rollout,
        token_mask=_joined([sequence.token_mask for _, sequence in sequences], np.bool_),
        gen_log_probabilities=_joined([sequence.log_probabilities for _, sequence in sequences], np.float32),
        sample_mask=masks.sample_mask, advantages=np.zeros(len(rollout), np.float32),
        rewards=rewards[rollout].astype(np.float32), prev_log_probabilities=None, n_tokens=0.0, n_sequences=0.0,
    ))
    report = BatchReport(
        rollouts=sum(len(group.trajectories) for group in groups), groups=len(groups), rows=batch.rows,
        tokens=len(batch.ids), sampled_tokens=int(batch.token_mask.sum()),
        group_ids=np.array([group.group_id for group, _ in kept], np.int64), rewards=rewards,
        not_samples=_count_others(groups), masked=masks.masked,
        ages=dict(sorted(Counter(_age(group, trajectory) for group, trajectory in kept).items())),
    )
    return batch, report


def apply_masks(batch: TrainBatch, report: BatchReport, prev: npt.NDArray[np.float32] | None,
                grpo: GrpoSettings) -> tuple[TrainBatch, BatchReport]:
    """Take out rows by log-probability error and fix the global counts; BatchError where nothing is left.

    ``prev`` [N]: the trainer's log-probabilities before the update, None where :func:`needs_prev` says no.
    """
    if grpo.masks.sequence_error_max is not None:
        if prev is None:
            raise ValueError("masks.sequence_error_max needs the log-probabilities from before the update")
        result = sequence_logprob_error_mask(prev, batch.gen_log_probabilities, batch.token_mask, batch.offsets,
                                             batch.sample_mask, grpo.masks.sequence_error_max)
    else:
        result = MaskResult(batch.sample_mask, {})
    batch = _counted(replace(batch, sample_mask=result.sample_mask,
                             prev_log_probabilities=prev if loss_reads_prev(grpo.loss) else None))
    report = replace(report, masked={**report.masked, **result.masked}, metrics={**report.metrics, **result.metrics})
    if batch.n_tokens == 0:
        role, why = _not_finite(batch, prev)
        raise BatchError(
            f"no token of {report.rollouts} rollouts is left to train on (not samples: {_listed(report.not_samples)}; "
            f"rows masked: {_listed(report.masked)}{why})", boundary=Boundary(role=role, step=batch.step),
            hint="see the causes in events.jsonl",
        )
    return batch, report


def _not_finite(batch: TrainBatch, prev: Floats | None) -> tuple[str | None, str]:
    """Whose log-probabilities of sampled tokens are no numbers, and how many, in words."""
    for role, values in ((Role.GENERATOR, batch.gen_log_probabilities), (Role.TRAINER, prev)):
        if values is not None and (count := int((~np.isfinite(values))[batch.token_mask].sum())):
            return role.value, f"; {count} log-probabilities from the {role.value} are no numbers"
    return None, ""


def with_advantages(batch: TrainBatch, report: BatchReport, grpo: GrpoSettings) -> tuple[TrainBatch, BatchReport]:
    """The batch with each row's advantage; alarms where the step has nothing to learn from."""
    trains = np.zeros(len(report.rewards), np.bool_)
    trains[batch.rollout[batch.sample_mask > 0]] = True
    result = advantages(report.rewards, report.group_ids, grpo.advantage, trains)
    batch = replace(batch, advantages=result.advantage[batch.rollout].astype(np.float32))
    nonzero = np.unique(report.group_ids[result.advantage != 0])
    alarms = dict(report.alarms)
    if not batch.advantages[batch.sample_mask > 0].any():
        alarms["advantages_all_zero"] = (f"all advantages of step {batch.step} are 0: within each group, every rollout "
                                         "has the same reward")
    return batch, replace(report, zero_advantage_groups=report.groups - len(nonzero), alarms=alarms)


def positive_tokens(batch: TrainBatch) -> float:
    """Kept sampled tokens of rows with a positive reward, over the whole batch."""
    return float(_row_tokens(batch)[(batch.rewards > 0) & (batch.sample_mask > 0)].sum())


def _counted(batch: TrainBatch) -> TrainBatch:
    return replace(batch, n_tokens=float(_row_tokens(batch) @ batch.sample_mask),
                   n_sequences=float(batch.sample_mask.sum()))


def _row_tokens(batch: TrainBatch) -> npt.NDArray[np.float64]:
    """Sampled tokens [R] of each row."""
    return row_counts(batch.token_mask, batch.offsets)


def _joined(parts: list[npt.NDArray], dtype: type) -> npt.NDArray:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)


def _age(group: Group, trajectory: Trajectory) -> int:
    return group.target - min(trajectory.versions, default=group.target)


def _count_others(groups: Sequence[Group]) -> dict[str, int]:
    return dict(Counter(trajectory.end.value for group in groups for trajectory in group.trajectories
                        if not trajectory.end.is_sample or trajectory.reward is None))


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
