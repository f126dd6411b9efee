"""The policy's shape, as far as a layout and its memory depend on it: from the checkpoint's ``config.json`` and the
heads of its weight files, or from what a plan knows of one that is not there."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError, PolicyFacts

from .headers import model_config, tensors_of, text_config

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.")
_WHOLE = re.compile(r"norm|\.mlp\.gate\.|shared_expert_gate|\.A_log|\.dt_bias")
_ROUTER, _MOE = ".mlp.gate.", ".mlp."
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_BESIDE = ("mtp.", "model.mtp.", "model.visual.", "visual.")


@dataclass(frozen=True, slots=True)
class Weight:
    """Some weights of one kind. ``layer`` is None outside the layers; ``cut``: over tensor-parallel ranks; ``moe``: of
    the part with experts. ``width`` is how many numbers go into their products and come out for each token."""

    layer: int | None
    first: bool
    expert: bool
    cut: bool
    router: bool
    moe: bool
    count: int
    width: int


@dataclass(frozen=True, slots=True)
class Shape:
    """``experts`` 0: dense. ``active``: experts that a token goes through. ``delta_net``: some layers have linear
    attention in place of softmax attention. ``largest`` is the number of weights in the largest tensor."""

    architecture: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    experts: int
    active: int
    expert_size: int
    delta_net: bool
    delta_heads: tuple[int, ...]
    tied: bool
    weights: tuple[Weight, ...]
    largest: int

    @property
    def parameters(self) -> int:
        return sum(weight.count for weight in self.weights)


def shape_of(folder: Path) -> Shape:
    """Of an HF folder; InputError where it says too little."""
    tensors = ((spec.name, spec.shape) for spec in tensors_of(folder))
    return _shape(model_config(folder), folder / "config.json", tensors)


def known_shape(policy: PolicyFacts) -> Shape | None:
    """Of the policy, wherever it is; None where nothing is known of it."""
    if policy.vocab_size:
        return shape_of(policy.checkpoint)
    if not policy.tensors:
        return None
    return _shape(text_config(policy.config), Path("policy.config"), policy.tensors.items())


def _shape(config: Mapping[str, Any], source: Path, tensors: Iterable[tuple[str, tuple[int, ...]]]) -> Shape:
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        architecture = str(config["architectures"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{source} does not say {error}", hint="see policy.checkpoint") from None
    delta_net = "linear_attention" in (config.get("layer_types") or ()) or "linear_num_value_heads" in config
    tied = bool(config.get("tie_word_embeddings"))
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    weights, largest = _weights(tensors, tied)
    return Shape(
        architecture=architecture, layers=layers, hidden=int(config.get("hidden_size") or 0),
        vocabulary=int(config.get("vocab_size") or 0), heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        experts=experts, active=int(config.get("num_experts_per_tok") or 0) if experts else 0,
        expert_size=int(config.get("moe_intermediate_size") or 0), delta_net=delta_net,
        delta_heads=tuple(int(config[name]) for name in ("linear_num_key_heads", "linear_num_value_heads")
                          if name in config and delta_net),
        tied=tied, weights=weights, largest=largest)


def _weights(tensors: Iterable[tuple[str, tuple[int, ...]]], tied: bool) -> tuple[tuple[Weight, ...], int]:
    """Those of equal kind together, and the count of the largest tensor."""
    sums: dict[tuple[int | None, bool, bool, bool, bool, bool], tuple[int, int]] = {}
    largest = 0
    for name, shape in tensors:
        if name.startswith(_BESIDE) or (tied and name == _HEAD):
            continue
        layer, whole = _LAYER.search(name), _WHOLE.search(name) is not None
        kind = (int(layer[1]) if layer else None, name.endswith(_EMBEDDING), _EXPERT.search(name) is not None,
                not whole, _ROUTER in name, _MOE in name)
        count, width = sums.get(kind, (0, 0))
        sums[kind] = count + math.prod(shape), width + (_width(shape) if layer else 0)
        largest = max(largest, math.prod(shape))
    return tuple(Weight(*kind, count=count, width=width) for kind, (count, width) in sums.items()), largest


def _width(shape: tuple[int, ...]) -> int:
    """Numbers that go into a product with these weights and come out, for one token; all experts' together."""
    if len(shape) == 3 and shape[1] > 1:
        return shape[0] * (shape[1] + shape[2])
    return sum(shape) if len(shape) == 2 else shape[0]
