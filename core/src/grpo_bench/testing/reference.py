"""What the kit compares with, in numpy and as it is defined: the forward pass of its policy, one Qwen3 layer; the loss
of a batch; the distribution that a sampling profile leaves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..contract import Floats, Ids, LossSettings, Sampling, TrainBatch
from . import tiny

Array = npt.NDArray[np.float64]
_EPS, _THETA = 1e-6, 10000.0


def log_probabilities(ids: Ids, tensors: tiny.Tensors | None = None, temperature: float = 1.0) -> Floats:
    """Log-probability [T] of each token given those before it, 0 for the first."""
    weights = {name: tensor.astype(np.float64) for name, tensor in (tensors or tiny.make_tensors()).items()}
    embed = weights["model.embed_tokens.weight"]
    layer = {name.removeprefix("model.layers.0."): tensor for name, tensor in weights.items()}
    hidden = embed[ids]
    hidden = hidden + _attention(_normed(hidden, layer["input_layernorm.weight"]), layer)
    inner = _normed(hidden, layer["post_attention_layernorm.weight"])
    gate = inner @ layer["mlp.gate_proj.weight"].T
    hidden = hidden + (gate / (1 + np.exp(-gate)) * (inner @ layer["mlp.up_proj.weight"].T)) @ (
        layer["mlp.down_proj.weight"].T)
    logits = _normed(hidden, weights["model.norm.weight"]) @ embed.T / temperature
    logits -= logits.max(-1, keepdims=True)
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    result = np.zeros(len(ids), np.float32)
    result[1:] = normal[np.arange(len(ids) - 1), ids[1:]]
    return result


def token_loss(current: Floats, batch: TrainBatch, settings: LossSettings) -> float:
    """The clipped loss with truncated importance weights (``tis``) as a mean over tokens, all rows kept; of
    log-probabilities ``current`` [N]."""
    assert batch.prev_log_probabilities is not None and settings.truncation is not None
    cur, prev, gen = (values[batch.token_mask].astype(np.float64) for values in (
        current, batch.prev_log_probabilities, batch.gen_log_probabilities))
    advantage = np.repeat(batch.advantages, np.diff(batch.offsets))[batch.token_mask]
    ratio = np.exp(cur - prev)
    loss = np.maximum(-advantage * ratio,
                      -advantage * np.clip(ratio, 1 - settings.clip_min, 1 + settings.clip_max))
    weight = np.clip(np.exp(prev - gen), settings.truncation.min or 0.0, settings.truncation.max)
    return float((weight * loss).sum() / batch.n_tokens)


def drawn_from(table: Floats, sampling: Sampling, slack: float = 0.0) -> Array:
    """Probabilities [V] that the profile leaves of ``table`` [V], log-probabilities at temperature 1: temperature,
    then top-k, then min-p, then top-p. ``slack`` widens top-p, for tokens that rounding may let in."""
    scaled = table.astype(np.float64) / sampling.temperature
    shares = np.exp(scaled - scaled.max())
    order = np.argsort(-shares, kind="stable")
    if sampling.top_k != -1:
        shares[order[sampling.top_k:]] = 0
    shares[shares < sampling.min_p * shares.max()] = 0
    shares /= shares.sum()
    before = np.cumsum(shares[order]) - shares[order]
    shares[order[before >= sampling.top_p + slack]] = 0
    return shares / shares.sum()


def chi_square(tokens: Ids, shares: Array, order: npt.NDArray[np.int64], bins: int) -> tuple[float, float]:
    """How far the numbers of ``tokens`` [n] are from ``shares`` [V], over ``bins`` of about equal probability along
    ``order`` [V]; and a limit far beyond what chance brings."""
    place = np.empty(len(shares), np.int64)
    middle = np.cumsum(shares[order]) - shares[order] / 2
    place[order] = np.minimum((middle * bins).astype(np.int64), bins - 1)
    expected = np.bincount(place, shares, bins) * len(tokens)
    found = np.bincount(place[tokens], minlength=bins)
    used = expected > 0
    freedom = int(used.sum()) - 1
    return float(((found - expected)[used] ** 2 / expected[used]).sum()), freedom + 9 * np.sqrt(2 * max(freedom, 1))


def _attention(hidden: Array, layer: dict[str, Array]) -> Array:
    q, k, v = (hidden @ layer[f"self_attn.{name}_proj.weight"].T for name in "qkv")
    q = _turned(_normed(q, layer["self_attn.q_norm.weight"]))
    k = _turned(_normed(k, layer["self_attn.k_norm.weight"]))
    scores = q @ k.T / np.sqrt(tiny.WIDTH)
    scores[np.triu_indices(len(hidden), 1)] = -np.inf
    share = np.exp(scores - scores.max(-1, keepdims=True))
    return share / share.sum(-1, keepdims=True) @ v @ layer["self_attn.o_proj.weight"].T


def _normed(values: Array, weight: Array) -> Array:
    return values / np.sqrt((values**2).mean(-1, keepdims=True) + _EPS) * weight


def _turned(values: Array) -> Array:
    """Rotary position embedding: halves of the vector are the parts of complex numbers."""
    half = values.shape[-1] // 2
    angle = np.arange(len(values))[:, None] / _THETA ** (np.arange(half) / half)
    first, second = values[:, :half], values[:, half:]
    return np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                           second * np.cos(angle) + first * np.sin(angle)], -1)
