"""Importance weights w = exp(prev - gen) of sampled tokens, and how they are truncated.

The weights carry no gradient. One that is NaN or infinite is 0. ``tis`` clamps weights, ``icepop`` zeroes those out of
bounds, ``seq-mask-tis`` keeps or zeroes whole rows by the geometric mean of their weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_bench.contract import TruncationSettings

EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Segments:
    """Which row [M] each of M tokens belongs to, R rows in all, and their token counts [R]."""

    row: Tensor
    count: Tensor

    @classmethod
    def of(cls, row: Tensor, rows: int, dtype: torch.dtype) -> Segments:
        count = torch.zeros(rows, dtype=dtype, device=row.device)
        return cls(row, count.index_add(0, row, torch.ones(row.shape, dtype=dtype, device=row.device)))

    def sum(self, values: Tensor) -> Tensor:
        """Sums [R] of per-token values [M]."""
        return torch.zeros_like(self.count).index_add(0, self.row, values)

    def mean(self, values: Tensor) -> Tensor:
        """Means [R] of per-token values [M]; 0 for a row without tokens."""
        return self.sum(values) / (self.count + EPS)


@dataclass(frozen=True, slots=True)
class Importance:
    """The weight [M] of each token, and what was truncated: a flag per token [M] or per row [R], or None."""

    weight: Tensor
    truncated_tokens: Tensor | None = None
    truncated_rows: Tensor | None = None


@torch.no_grad()
def importance_weights(prev: Tensor, gen: Tensor, segments: Segments, truncation: TruncationSettings | None,
                       *, per_sequence: bool) -> Importance:
    """Weights from log-probabilities [M]. ``per_sequence``: one weight per row, from the sum over its tokens."""
    difference = prev - gen
    log_weight = segments.sum(difference)[segments.row] if per_sequence else difference
    weight = torch.nan_to_num(torch.exp(log_weight), nan=0.0, posinf=0.0, neginf=0.0)
    if truncation is None:
        return Importance(weight)
    low, high = truncation.min, truncation.max
    if truncation.kind == "seq-mask-tis":
        finite = torch.where(difference.isfinite(), difference, torch.zeros_like(difference))
        mean = torch.exp(segments.sum(finite) / segments.count.clamp(min=1))
        dropped = (mean > high) if low is None else (mean > high) | (mean < low)
        return Importance(torch.where(dropped[segments.row], torch.zeros_like(weight), weight), truncated_rows=dropped)
    outside = (weight > high) if low is None else (weight > high) | (weight < low)
    if truncation.kind == "icepop":
        return Importance(torch.where(outside, torch.zeros_like(weight), weight), truncated_tokens=outside)
    return Importance(weight.clamp(0.0 if low is None else low, high), truncated_tokens=outside)
