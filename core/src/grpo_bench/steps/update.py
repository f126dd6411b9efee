"""The policy loss on flat tokens: a pure function of tensors, torch only.

The caller hands in the M sampled tokens (token_mask 1) of R rows, in any split of the global batch: per-token tensors
[M] in their own dtype, ``row`` [M] int64 naming each token's row, per-row tensors [R]. Only ``cur`` carries a
gradient. Every result is already divided by the counts of the GLOBAL batch, so that the parts of a step add up to its
loss, its gradient and its metrics whatever the split; nothing here is averaged per part.

Rows with sample_mask 0 may be present or left out: they change nothing, whatever their tokens hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_bench.contract import LossSettings

from .importance import EPS, Importance, Segments, importance_weights
from .kl import kl_estimate
from .needs import loss_reads_prev, loss_reads_reference

__all__ = ["LossResult", "combine_metrics", "policy_loss"]


@dataclass(frozen=True, slots=True)
class LossResult:
    """``loss``: scalar with gradient. ``metrics``: detached scalars; combine those of a step's parts with
    :func:`combine_metrics`."""

    loss: Tensor
    metrics: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a batch with masked rows neutralised, and how its values reduce to shares of the global means."""

    cur: Tensor
    prev: Tensor
    gen: Tensor
    ref: Tensor | None
    advantage: Tensor
    kept: Tensor
    """Sample mask of each token [M]."""
    sample_mask: Tensor
    segments: Segments
    n_tokens: float
    n_sequences: float

    def over_tokens(self, values: Tensor) -> Tensor:
        return (values * self.kept).sum() / (self.n_tokens + EPS)

    def over_sequences(self, values: Tensor) -> Tensor:
        """Mean over rows of per-row values [R]."""
        return (values * self.sample_mask).sum() / (self.n_sequences + EPS)

    def reduce(self, values: Tensor, settings: LossSettings) -> Tensor:
        if settings.reduction == "token":
            return self.over_tokens(values)
        return self.over_sequences(self.segments.mean(values))


def policy_loss(cur: Tensor, row: Tensor, *, gen: Tensor, prev: Tensor | None, ref: Tensor | None, advantages: Tensor,
                sample_mask: Tensor, rewards: Tensor, n_tokens: float, n_sequences: float, n_positive_tokens: float,
                settings: LossSettings) -> LossResult:
    """The contract's loss of the tokens given.

    ``cur`` [M] with gradient, ``gen`` [M], ``prev`` [M] (None where :func:`grpo_bench.steps.needs_prev` says no),
    ``ref`` [M] (None without a KL penalty), ``advantages`` [R], ``sample_mask`` [R], ``rewards`` [R]. ``n_tokens``,
    ``n_sequences`` and ``n_positive_tokens`` (kept tokens of rows with reward > 0, see
    :func:`grpo_bench.steps.positive_tokens`) count the global batch.
    """
    part = _part(cur, row, gen, prev, ref, advantages, sample_mask, n_tokens, n_sequences, settings)
    ratio, clipped = _ratios(part, settings)
    token_loss = _clipped_loss(part, ratio, clipped, settings)
    weights = None
    if settings.importance_correction:
        weights = importance_weights(part.prev, part.gen, part.segments, settings.truncation,
                                     per_sequence=settings.ratio == "gspo")
        token_loss = weights.weight * token_loss
    loss = part.reduce(token_loss, settings)
    metrics = _metrics(part, ratio, clipped, weights)
    if part.ref is not None:
        penalty = settings.kl.penalty * part.reduce(_kl(part, settings), settings)
        loss = loss + penalty
        metrics["kl_penalty"] = penalty.detach()
    if settings.positive_nll_weight:
        positive = (rewards > 0).to(cur.dtype)[row] * part.kept
        nll = -(part.cur * positive).sum() / max(n_positive_tokens, 1.0)
        loss = loss + settings.positive_nll_weight * nll
        metrics["positive_nll"] = nll.detach()
    return LossResult(loss, {"loss": loss.detach(), **metrics})


def combine_metrics(parts: Iterable[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """Metrics of a step from those of its parts: the least of ``*_min``, the greatest of ``*_max``, else the sum."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            combine = min if name.endswith("_min") else max if name.endswith("_max") else lambda a, b: a + b
            total[name] = combine(total[name], float(value)) if name in total else float(value)
    return total


def _part(cur: Tensor, row: Tensor, gen: Tensor, prev: Tensor | None, ref: Tensor | None, advantages: Tensor,
          sample_mask: Tensor, n_tokens: float, n_sequences: float, settings: LossSettings) -> _Part:
    if prev is None and loss_reads_prev(settings):
        raise ValueError("these settings need the log-probabilities from before the update, and prev is None")
    if ref is None and loss_reads_reference(settings):
        raise ValueError("a KL penalty needs the reference policy's log-probabilities, and ref is None")
    sample_mask = sample_mask.to(cur.dtype)
    kept = sample_mask[row]
    present = kept > 0

    def neutral(values: Tensor) -> Tensor:
        return torch.where(present, values, torch.zeros_like(values))

    cur = neutral(cur)
    return _Part(
        cur=cur, prev=cur.detach() if settings.force_on_policy_ratio or prev is None else neutral(prev.detach()),
        gen=neutral(gen.detach()),
        ref=neutral(ref.detach()) if ref is not None and loss_reads_reference(settings) else None,
        advantage=neutral(advantages.to(cur.dtype)[row]), kept=kept, sample_mask=sample_mask,
        segments=Segments.of(row, len(sample_mask), cur.dtype), n_tokens=n_tokens, n_sequences=n_sequences,
    )


def _ratios(part: _Part, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The ratio and the clipped ratio of each token [M]."""
    if settings.ratio == "reinforce":
        return part.cur, part.cur
    log_ratio = part.cur - part.prev
    if settings.ratio == "gspo":
        log_ratio = part.segments.mean(log_ratio)[part.segments.row]
    ratio = torch.exp(log_ratio)
    return ratio, ratio.clamp(1 - settings.clip_min, 1 + settings.clip_max)


def _clipped_loss(part: _Part, ratio: Tensor, clipped: Tensor, settings: LossSettings) -> Tensor:
    """The loss of each token [M] before importance weights."""
    if settings.ratio == "cispo":
        return -part.advantage * clipped.detach() * part.cur
    loss = torch.maximum(-part.advantage * ratio, -part.advantage * clipped)
    if settings.dual_clip is not None:
        bounded = torch.minimum(loss, -part.advantage * settings.dual_clip)
        loss = torch.where(part.advantage < 0, bounded, loss)
    return loss


def _kl(part: _Part, settings: LossSettings) -> Tensor:
    assert part.ref is not None
    base = part.gen if settings.kl.on_policy_approximation else part.cur.detach()
    return kl_estimate(part.cur, part.ref, settings.kl, weight=torch.exp(part.cur - base))


@torch.no_grad()
def _metrics(part: _Part, ratio: Tensor, clipped: Tensor, weights: Importance | None) -> dict[str, Tensor]:
    """Means over the global batch's kept tokens, as far as this part adds to them, and extremes of its ratios."""
    error = part.gen - part.prev
    mixture = torch.logaddexp(part.prev, part.gen) - math.log(2)
    divergence = (_k3(part.prev - mixture) + _k3(part.gen - mixture)) / 2
    infinity = torch.full_like(ratio, torch.inf)
    present = part.kept > 0
    metrics = {
        "ratio": part.over_tokens(ratio),
        "ratio_clipped": part.over_tokens(clipped),
        "clipped_share": part.over_tokens((ratio != clipped).to(ratio.dtype)),
        "ratio_min": torch.where(present, ratio, infinity).amin() if len(ratio) else ratio.new_tensor(torch.inf),
        "ratio_max": torch.where(present, ratio, -infinity).amax() if len(ratio) else ratio.new_tensor(-torch.inf),
        "probability_error": part.over_tokens(torch.exp(error.abs())),
        "gen_kl": part.over_tokens(_k3(part.prev - part.gen)),
        "policy_kl": part.over_tokens(_k3(part.gen - part.prev)),
        "js_divergence": part.over_tokens(divergence),
        "entropy": part.over_tokens(-torch.exp(part.cur - part.gen) * part.cur),
    }
    if weights is not None:
        metrics["importance_weight"] = part.over_tokens(weights.weight)
        if weights.truncated_tokens is not None:
            metrics["truncated_share"] = part.over_tokens(weights.truncated_tokens.to(ratio.dtype))
        if weights.truncated_rows is not None:
            metrics["truncated_share"] = part.over_sequences(weights.truncated_rows.to(ratio.dtype))
    return metrics


def _k3(rho: Tensor) -> Tensor:
    return torch.exp(rho) - 1 - rho
