"""Memory of one process of an engine, counted from shapes: its part of the weights, and what cached tokens take.

vLLM divides matrices by the number of processes, repeats keys and values where there are fewer heads of them than
processes, and keeps norms and routers whole in each.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .arguments import CPU_CACHE_GIB, GIB
from .checkpoint import Model
from .config import VllmGeneratorConfig

ASSUMED = (
    "weights: matrices are cut over the engine's processes, norms and routers are whole in each; keys and values are "
    "repeated where they have fewer heads than there are processes",
    "cache: what gpu_memory_utilization leaves beside the weights, unless kv_cache_gib says it; vLLM gives its "
    "activations and graphs their part of that first",
    "refit: the largest tensor whole, and the process's part of the layer in the making, out of what "
    "gpu_memory_utilization leaves free",
)
"""What the estimate goes by, for people."""
_ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
_STATE_ITEM = 4
"""Bytes of a number of a linear layer's state, which is kept in float32."""
_WHOLE = (".mlp.gate.weight", ".shared_expert_gate.weight")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_KEYS_AND_VALUES = (".k_proj.weight", ".v_proj.weight", ".k_proj.bias", ".v_proj.bias")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of one process. ``token`` is one cached token, ``sequence`` what a sequence takes besides its tokens,
    ``refit`` what is there at once while new weights come in."""

    weights: int
    cache: int
    token: int
    sequence: int
    refit: int

    @property
    def total(self) -> int:
        """What is taken for good; a refit comes out of what is left."""
        return self.weights + self.cache

    def room(self, context: int) -> tuple[int, int] | None:
        """Tokens that the cache holds, and sequences of ``context`` tokens."""
        if not self.token + self.sequence:
            return None
        return self.cache // max(self.token, 1), self.cache // (self.token * context + self.sequence)


def footprint(config: VllmGeneratorConfig, model: Model, device: Mapping[str, Any]) -> Footprint:
    """What one of an engine's processes holds on ``device`` (as the inventory says it)."""
    weights = sum(_share(name, shape, model, config.tensor_parallel) for name, shape in model.tensors.items()
                  if not _unused(name)) * _ITEM[config.dtype]
    full_layers = model.layers - model.linear_layers
    kv_heads = max(1, model.kv_heads // config.tensor_parallel)
    token = math.ceil(full_layers * 2 * kv_heads * model.head_dim * _cache_item(config))
    return Footprint(weights, _cache(config, weights, device), token, _state(config, model), _refit(config, model))


def _refit(config: VllmGeneratorConfig, model: Model) -> int:
    """The largest tensor as it comes in, and the largest layer, which is made anew beside the one that is there."""
    largest, layers = 0, defaultdict[str, int](int)
    for name, shape in model.tensors.items():
        if not _unused(name):
            largest = max(largest, math.prod(shape))
            layer = _LAYER.search(name)
            layers[layer[1] if layer else name] += _share(name, shape, model, config.tensor_parallel)
    return (largest + max(layers.values(), default=0)) * _ITEM[config.dtype]


def _share(name: str, shape: tuple[int, ...], model: Model, ranks: int) -> int:
    count = math.prod(shape)
    if len(shape) < 2 or name.endswith(_WHOLE):
        return count
    return math.ceil(count / (min(ranks, model.kv_heads) if name.endswith(_KEYS_AND_VALUES) else ranks))


def _unused(name: str) -> bool:
    """Of the vision tower and of the layers that draft tokens."""
    return bool({"visual", "mtp"} & set(name.split(".")))


def _cache(config: VllmGeneratorConfig, weights: int, device: Mapping[str, Any]) -> int:
    if config.kv_cache_gib is not None:
        return int(config.kv_cache_gib * GIB)
    if device["type"] != "cuda":
        return int(CPU_CACHE_GIB * GIB)
    return int(min(device["memory"]) * config.gpu_memory_utilization) - weights


def _cache_item(config: VllmGeneratorConfig) -> float:
    kind = config.kv_cache_dtype
    if kind in ("auto", *_ITEM):
        return _ITEM[config.dtype if kind == "auto" else kind]
    return 0.5 if "4" in kind.replace("e4m3", "") else 1


def _state(config: VllmGeneratorConfig, model: Model) -> int:
    """A sequence's state in the linear layers: a matrix per value head, and the inputs a convolution still sees."""
    keys, values = model.size("linear_num_key_heads"), model.size("linear_num_value_heads")
    key_dim, value_dim = model.size("linear_key_head_dim"), model.size("linear_value_head_dim")
    inputs = (2 * keys * key_dim + values * value_dim) * max(0, model.size("linear_conv_kernel_dim") - 1)
    per_layer = values * key_dim * value_dim * _STATE_ITEM + inputs * _ITEM[config.dtype]
    return math.ceil(model.linear_layers * per_layer / config.tensor_parallel)
