"""Batches for trainers: on policy, off policy, and one that must not train at all. Their tokens are random bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..contract import Floats, Ids, LossSettings, TrainBatch, TruncationSettings

VOCABULARY = 256
ROWS = 6
TEMPERATURE = 0.7
"""At which :data:`LOSS` is tried: one that is not 1."""
LOSS = LossSettings(clip_min=0.1, clip_max=0.15, importance_correction=True,
                    truncation=TruncationSettings(kind="tis", max=1.1))
"""Settings in which nothing but the token mean is the default."""
_CLIPPED_ABOVE, _CLIPPED_BELOW = 1.2, 0.85
"""Ratios that are clipped by these settings, and would not be by the default ones."""


def sequences() -> list[Ids]:
    """Rows of random bytes, two of them with a beginning in common."""
    random = np.random.RandomState(3)
    rows = [random.randint(0, VOCABULARY, length).astype(np.int32) for length in (12, 30, 7, 2)]
    return [*rows, np.concatenate([rows[1][:20], rows[0]])]


def make_batch(step: int = 1) -> TrainBatch:
    """Six rows in groups of two that share a prompt, with advantages of both signs that do not add up to 0."""
    random = np.random.RandomState(step)
    prompts = [random.randint(0, VOCABULARY, random.randint(6, 20)) for _ in range(ROWS // 2)]
    rows, masks = [], []
    for row in range(ROWS):
        prompt, reply = prompts[row // 2], random.randint(0, VOCABULARY, random.randint(5, 16))
        rows.append(np.concatenate([prompt, reply]).astype(np.int32))
        masks.append(np.concatenate([np.zeros(len(prompt), np.bool_), np.ones(len(reply), np.bool_)]))
    mask = np.concatenate(masks)
    return TrainBatch(
        step=step, ids=np.concatenate(rows), offsets=np.cumsum([0, *map(len, rows)], dtype=np.int64),
        rollout=np.arange(ROWS, dtype=np.int32), token_mask=mask, gen_log_probabilities=np.zeros(len(mask), np.float32),
        sample_mask=np.ones(ROWS, np.float32), advantages=np.array([1, -0.5, 1.5, -1, 0.5, -0.25], np.float32),
        rewards=np.array([1, 0, 1, 0, 1, 0], np.float32), prev_log_probabilities=None, n_tokens=float(mask.sum()),
        n_sequences=float(ROWS))


def tokens_of(batch: TrainBatch, rows: int) -> float:
    """Sampled tokens of the first ``rows`` rows."""
    return float(batch.token_mask[:batch.offsets[rows]].sum())


def by_token(batch: TrainBatch, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Per-row values [R] for every token [N]."""
    return np.repeat(values, np.diff(batch.offsets))


def with_ratio(batch: TrainBatch, current: Floats, ratio: Floats) -> TrainBatch:
    """The batch as sampled by a policy from which the current one differs by ``ratio`` [N], and generated with
    log-probabilities that differ from that policy's by a little. What stands at tokens that were not sampled would
    train, if they were."""
    noise = np.random.RandomState(11).normal(0, 0.2, len(current))
    prev = np.where(batch.token_mask, current, -5.5) - np.log(ratio)
    return replace(batch, prev_log_probabilities=prev.astype(np.float32),
                   gen_log_probabilities=(prev + noise).astype(np.float32))


def off_policy(batch: TrainBatch, current: Floats) -> TrainBatch:
    """The batch as an older policy sampled it: some ratios are clipped, some weights are truncated."""
    return with_ratio(batch, current, np.exp(np.random.RandomState(12).normal(0, 0.15, len(current))))


def clipped(batch: TrainBatch, current: Floats, but: int | None = None) -> TrainBatch:
    """The batch as a policy sampled it from which the current one has moved as far as it may, token by token; row
    ``but`` as the current policy sampled it itself."""
    ratio = np.where(by_token(batch, batch.advantages) > 0, _CLIPPED_ABOVE, _CLIPPED_BELOW)
    moved = batch.token_mask & (by_token(batch, np.arange(batch.rows)) != but)
    return with_ratio(batch, current, np.where(moved, ratio, 1.0))
