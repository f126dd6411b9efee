"""The policy's shape, as far as a layout and its memory depend on it: from the checkpoint's ``config.json`` and the
heads of its weight files."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import InputError

from .headers import model_config, tensors_of

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.")
_WHOLE = re.compile(r"norm|\.mlp\.gate\.|shared_expert_gate|\.A_log|\.dt_bias")
_ROUTER = ".mlp.gate."
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_BESIDE = ("mtp.", "model.mtp.", "model.visual.", "visual.")


@dataclass(frozen=True, slots=True)
class Weight:
    """Some weights of one kind. ``layer`` is None outside the layers; ``cut``: over tensor-parallel ranks."""

    layer: int | None
    first: bool
    expert: bool
    cut: bool
    router: bool
    count: int


@dataclass(frozen=True, slots=True)
class Shape:
    """``experts`` 0: dense. ``delta_net``: some layers have linear attention in place of softmax attention."""

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int
    expert_size: int
    delta_net: bool
    delta_heads: tuple[int, ...]
    tied: bool
    weights: tuple[Weight, ...]

    @property
    def parameters(self) -> int:
        return sum(weight.count for weight in self.weights)


def shape_of(folder: Path) -> Shape:
    """Of an HF folder; InputError where it says too little."""
    config = model_config(folder)
    try:
        layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
        architecture = str(config["architectures"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{folder / 'config.json'} does not say {error}", hint="see policy.checkpoint") from None
    delta_net = "linear_attention" in (config.get("layer_types") or ()) or "linear_num_value_heads" in config
    tied = bool(config.get("tie_word_embeddings"))
    return Shape(
        architecture=architecture, layers=layers, heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        experts=int(config.get("num_experts") or config.get("num_local_experts") or 0),
        expert_size=int(config.get("moe_intermediate_size") or 0), delta_net=delta_net,
        delta_heads=tuple(int(config[name]) for name in ("linear_num_key_heads", "linear_num_value_heads")
                          if name in config and delta_net),
        tied=tied, weights=tuple(_weights(folder, tied)))


def _weights(folder: Path, tied: bool) -> list[Weight]:
    """Those of equal kind together."""
    counts: dict[tuple[int | None, bool, bool, bool, bool], int] = {}
    for spec in tensors_of(folder):
        if spec.name.startswith(_BESIDE) or (tied and spec.name == _HEAD):
            continue
        layer = _LAYER.search(spec.name)
        expert = _EXPERT.search(spec.name) is not None
        whole = _WHOLE.search(spec.name) is not None
        kind = (int(layer[1]) if layer else None, spec.name.endswith(_EMBEDDING), expert, not whole,
                _ROUTER in spec.name)
        counts[kind] = counts.get(kind, 0) + math.prod(spec.shape)
    return [Weight(*kind, count=count) for kind, count in counts.items()]
