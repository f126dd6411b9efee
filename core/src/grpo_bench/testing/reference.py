"""The forward pass of the kit's policy in numpy, for comparison: one Qwen3 layer, written down as it is defined."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..contract import Floats, Ids
from . import tiny

Array = npt.NDArray[np.float64]
_EPS, _THETA = 1e-6, 10000.0


def log_probabilities(ids: Ids, tensors: tiny.Tensors | None = None) -> Floats:
    """Log-probability [T] of each token given those before it, 0 for the first, at temperature 1."""
    weights = {name: tensor.astype(np.float64) for name, tensor in (tensors or tiny.make_tensors()).items()}
    embed = weights["model.embed_tokens.weight"]
    layer = {name.removeprefix("model.layers.0."): tensor for name, tensor in weights.items()}
    hidden = embed[ids]
    hidden = hidden + _attention(_normed(hidden, layer["input_layernorm.weight"]), layer)
    inner = _normed(hidden, layer["post_attention_layernorm.weight"])
    gate = inner @ layer["mlp.gate_proj.weight"].T
    hidden = hidden + (gate / (1 + np.exp(-gate)) * (inner @ layer["mlp.up_proj.weight"].T)) @ (
        layer["mlp.down_proj.weight"].T)
    logits = _normed(hidden, weights["model.norm.weight"]) @ embed.T
    logits -= logits.max(-1, keepdims=True)
    normal = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    result = np.zeros(len(ids), np.float32)
    result[1:] = normal[np.arange(len(ids) - 1), ids[1:]]
    return result


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
