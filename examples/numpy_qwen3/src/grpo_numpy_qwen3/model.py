"""Qwen3 in numpy, dense or with experts: the weights under their Hugging Face names, and what they compute.

A sequence is computed in pieces, each attending to all before it through the keys and values in the cache. ``x`` is
[n, hidden] throughout, one row for each token of the piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grpo_bench.contract import Floats, Ids


class Cache:
    """Keys and values [T, heads, head_dim] of the tokens computed so far, by layer."""

    def __init__(self) -> None:
        self.length = 0
        self._kept: dict[int, tuple[Floats, Floats]] = {}

    def add(self, layer: int, keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        """All of the layer's, these included."""
        if layer in self._kept:
            keys, values = (np.concatenate(pair) for pair in zip(self._kept[layer], (keys, values), strict=True))
        self._kept[layer] = keys, values
        return keys, values


class Model:
    """``tensors`` are float32 by Hugging Face name, ``settings`` is the policy's config.json."""

    def __init__(self, tensors: Mapping[str, Floats], settings: Mapping[str, Any]) -> None:
        if settings["model_type"] not in ("qwen3", "qwen3_moe"):
            raise ValueError(f"model_type {settings['model_type']!r} is neither qwen3 nor qwen3_moe")
        for name, shape in _shapes(settings):
            if name not in tensors or tensors[name].shape != shape:
                found = tensors[name].shape if name in tensors else "missing"
                raise ValueError(f"{name} is {found}, but should be {shape}")
        self._tensors = tensors
        self._settings = settings
        self._embeddings = tensors["model.embed_tokens.weight"]
        self._head = tensors.get("lm_head.weight", self._embeddings)
        half = np.arange(0, settings["head_dim"], 2, dtype=np.float32) / settings["head_dim"]
        self._frequencies = 1 / np.float32(settings["rope_theta"]) ** half

    def extend(self, cache: Cache, ids: Ids) -> Floats:
        """Logits [n, vocab] after each of the next ``ids`` [n] of a sequence whose beginning is in the cache."""
        positions = np.arange(cache.length, cache.length + len(ids), dtype=np.int32)
        x = self._embeddings[ids]
        for layer in range(self._settings["num_hidden_layers"]):
            x = x + self._attention(layer, self._norm(x, f"model.layers.{layer}.input_layernorm"), positions, cache)
            x = x + self._mlp(layer, self._norm(x, f"model.layers.{layer}.post_attention_layernorm"))
        cache.length += len(ids)
        return self._norm(x, "model.norm") @ self._head.T

    def _attention(self, layer: int, x: Floats, positions: Ids, cache: Cache) -> Floats:
        prefix, size = f"model.layers.{layer}.self_attn", self._settings["head_dim"]
        q, k, v = ((x @ self._weight(f"{prefix}.{name}_proj").T).reshape(len(x), -1, size) for name in "qkv")
        q = self._rotated(self._norm(q, f"{prefix}.q_norm"), positions)
        keys, values = cache.add(layer, self._rotated(self._norm(k, f"{prefix}.k_norm"), positions), v)
        shared = q.shape[1] // keys.shape[1]  # heads of queries to a head of keys and values
        keys, values = keys.repeat(shared, 1), values.repeat(shared, 1)
        scores = np.einsum("nhd,thd->hnt", q, keys) / np.float32(np.sqrt(size))
        scores[:, np.arange(len(keys)) > positions[:, None]] = -np.inf
        mixed = np.einsum("hnt,thd->nhd", _softmax(scores), values)
        return mixed.reshape(len(x), -1) @ self._weight(f"{prefix}.o_proj").T

    def _mlp(self, layer: int, x: Floats) -> Floats:
        prefix = f"model.layers.{layer}.mlp"
        if not self._settings.get("num_experts"):
            return self._gated(prefix, x)
        top = self._settings["num_experts_per_tok"]
        shares = _softmax(x @ self._weight(f"{prefix}.gate").T)
        chosen = np.argsort(-shares, -1, kind="stable")[:, :top]
        weights = np.take_along_axis(shares, chosen, 1)
        if self._settings["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdims=True)
        result = np.zeros_like(x)
        for expert in np.unique(chosen):
            token, place = np.nonzero(chosen == expert)
            result[token] += weights[token, place, None] * self._gated(f"{prefix}.experts.{expert}", x[token])
        return result

    def _gated(self, prefix: str, x: Floats) -> Floats:
        gate: Floats = x @ self._weight(f"{prefix}.gate_proj").T
        up: Floats = x @ self._weight(f"{prefix}.up_proj").T
        active: Floats = gate * _sigmoid(gate) * up
        return active @ self._weight(f"{prefix}.down_proj").T

    def _rotated(self, x: Floats, positions: Ids) -> Floats:
        """Rotary embedding of x [n, heads, head_dim]: component i turns with component i + head_dim / 2."""
        angle = (positions[:, None] * self._frequencies)[:, None]
        cos, sin = np.cos(angle), np.sin(angle)
        first, second = np.split(x, 2, -1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1).astype(np.float32)

    def _norm(self, x: Floats, name: str) -> Floats:
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self._settings["rms_norm_eps"])) * self._weight(name)

    def _weight(self, name: str) -> Floats:
        return self._tensors[f"{name}.weight"]


def _shapes(settings: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every weight that the policy has, with its shape."""
    hidden, size, experts = settings["hidden_size"], settings["head_dim"], settings.get("num_experts", 0)
    rows = {"q": settings["num_attention_heads"] * size, "k": settings["num_key_value_heads"] * size}
    width = settings["moe_intermediate_size" if experts else "intermediate_size"]
    yield "model.embed_tokens.weight", (settings["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    if not settings["tie_word_embeddings"]:
        yield "lm_head.weight", (settings["vocab_size"], hidden)
    for layer in range(settings["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield from ((f"{prefix}.{name}.weight", (hidden,)) for name in ("input_layernorm", "post_attention_layernorm"))
        yield from ((f"{prefix}.self_attn.{name}_norm.weight", (size,)) for name in "qk")
        yield from ((f"{prefix}.self_attn.{name}_proj.weight", (rows.get(name, rows["k"]), hidden)) for name in "qkv")
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, rows["q"])
        if experts:
            yield f"{prefix}.mlp.gate.weight", (experts, hidden)
        for mlp in [f"{prefix}.mlp.experts.{expert}" for expert in range(experts)] or [f"{prefix}.mlp"]:
            yield from ((f"{mlp}.{name}_proj.weight", (width, hidden)) for name in ("gate", "up"))
            yield f"{mlp}.down_proj.weight", (hidden, width)


def _sigmoid(x: Floats) -> Floats:
    """Through tanh, which no number overflows."""
    half = np.float32(0.5)
    return half + half * np.tanh(half * x)


def _softmax(x: Floats) -> Floats:
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
