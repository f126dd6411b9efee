"""Which rows of a batch train: sample masks [R] as float32 of 0 and 1, and why a row is masked.

A rollout is masked as a whole, with all its rows, because its prompt alone fills the context, because the context cut
it off, or because its environment says so. The log-probability error then masks single rows. Reasons are tried in that
order and a row counts for the first that applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import End, Trajectory

Mask = npt.NDArray[np.float32]


class Reason(StrEnum):
    """Why a row does not train."""

    OVERLONG_PROMPT = "overlong_prompt"
    TRUNCATED = "truncated"
    ENVIRONMENT = "environment"
    LOG_PROBABILITY_ERROR = "log_probability_error"


@dataclass(frozen=True, slots=True)
class MaskResult:
    """A sample mask [R], how many rows each reason took out, and notable statistics."""

    sample_mask: Mask
    masked: Mapping[str, int]
    metrics: Mapping[str, float] = field(default_factory=dict)


def rollout_mask(trajectories: Sequence[Trajectory], rollout: npt.NDArray[np.int32], *,
                 overlong_filter: bool) -> MaskResult:
    """Masks [R] of rows that belong to the trajectories ``rollout`` [R] names."""
    reasons = [_reason(trajectory, overlong_filter) for trajectory in trajectories]
    of_rows = [reasons[index] for index in rollout]
    masked = {reason.value: of_rows.count(reason) for reason in Reason if reason in of_rows}
    return MaskResult(np.array([reason is None for reason in of_rows], np.float32), masked)


def _reason(trajectory: Trajectory, overlong_filter: bool) -> Reason | None:
    if trajectory.end is End.TRUNCATED:
        if trajectory.sampled_tokens == 0:
            return Reason.OVERLONG_PROMPT
        if overlong_filter:
            return Reason.TRUNCATED
    return Reason.ENVIRONMENT if trajectory.masked else None


def sequence_logprob_error_mask(prev: npt.NDArray[np.floating], gen: npt.NDArray[np.floating],
                                token_mask: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64],
                                sample_mask: Mask, threshold: float | None) -> MaskResult:
    """Mask rows whose mean exp|gen - prev| over sampled tokens is above ``threshold`` (None: measure only).

    ``prev``, ``gen`` and ``token_mask`` [N] are ragged by ``offsets`` [R + 1]. A row with a NaN is masked; one without
    a sampled token is kept with error 0 and left out of the statistics.
    """
    with np.errstate(over="ignore"):
        errors = np.subtract(gen, prev, out=np.zeros(len(token_mask)), where=token_mask, dtype=np.float64)
        np.exp(np.abs(errors, out=errors), out=errors)
    np.copyto(errors, 0.0, where=~token_mask)
    count = row_counts(token_mask, offsets)
    error = _row_sums(errors, offsets) / np.maximum(count, 1)
    kept = sample_mask if threshold is None else sample_mask * (error <= threshold)
    kept = np.asarray(kept, np.float32)
    dropped = int((sample_mask != kept).sum())
    before, after = (error[(mask > 0) & (count > 0)] for mask in (sample_mask, kept))
    metrics = {"sequence_error_mean": _mean(before), "sequence_error_max": float(before.max(initial=0.0)),
               "sequence_error_mean_kept": _mean(after), "sequence_error_max_kept": float(after.max(initial=0.0))}
    return MaskResult(kept, {Reason.LOG_PROBABILITY_ERROR.value: dropped} if dropped else {}, metrics)


def row_counts(mask: npt.NDArray[np.bool_], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """How often [R] each row of ``mask`` [N], which is ragged by ``offsets`` [R + 1], is True."""
    ends = offsets.tolist()
    return np.array([np.count_nonzero(mask[start:end]) for start, end in pairwise(ends)], np.float64)


def _row_sums(values: npt.NDArray[np.float64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    sums = np.zeros(len(offsets) - 1)
    filled = offsets[1:] > offsets[:-1]
    if filled.any():
        sums[filled] = np.add.reduceat(values, offsets[:-1][filled])
    return sums


def _mean(values: npt.NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else 0.0
