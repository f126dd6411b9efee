"""Drawing tokens.

Random numbers are counter-based: the number for a token is a hash of (seed, stream, position), so it does not depend on
what else is sampled. Tokens are drawn by inverting the cumulative distribution. Temperature scales the logits first,
then top-k, min-p and top-p narrow them; log-probabilities are those of the distribution drawn from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_bench.contract import Sampling

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def stream_key(seed: int, stream: str) -> int:
    """The 64-bit key of a named random stream."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=8).digest(), "little")


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> np.ndarray:
    """One number in [0, 1) for each key and position [m], float64 (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        x = np.array(keys, np.uint64) + (np.array(positions, np.uint64) + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)).astype(np.float64) * 2.0**-53


def draw(logits: Tensor, sampling: Sampling, uniform: np.ndarray) -> tuple[list[int], list[float]]:
    """A token and its log-probability for each row of logits [m, vocab]; logits that are NaN give NaN."""
    table = distribution(logits, sampling)
    cumulative = table.exp().cumsum(-1, dtype=torch.float64)
    target = torch.from_numpy(uniform).unsqueeze(-1) * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, target, right=True).clamp_max_(logits.shape[-1] - 1)
    return token.flatten().tolist(), table.gather(1, token).flatten().tolist()


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities [m, vocab] that tokens are drawn from; -inf for those ruled out."""
    scaled = logits if sampling.temperature == 1.0 else logits / sampling.temperature
    table = scaled.log_softmax(-1)
    if sampling.top_k != -1 and sampling.top_k < table.shape[-1]:
        least = table.topk(sampling.top_k, -1).values[:, -1:]
        table = _keep(table, table >= least)
    if sampling.min_p > 0:
        table = _keep(table, table.exp() >= sampling.min_p * table.amax(-1, keepdim=True).exp())
    if sampling.top_p < 1:
        ordered, index = torch.sort(table, stable=True, dim=-1, descending=True)
        probability = ordered.exp()
        before = probability.cumsum(-1) - probability
        inside = torch.zeros_like(table, dtype=torch.bool).scatter_(1, index, before < sampling.top_p)
        table = _keep(table, inside)
    return table


def _keep(table: Tensor, inside: Tensor) -> Tensor:
    return table.masked_fill(~inside, -torch.inf).log_softmax(-1)
