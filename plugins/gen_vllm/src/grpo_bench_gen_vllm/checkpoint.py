"""What a plan needs to know of the policy's checkpoint: its shape from config.json, its tensors from the headers of its
safetensors files, or both from what is known of one that is not there. No weight is read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import PlanError, PolicyFacts
from grpo_bench.steps import Head, head_of


@dataclass(frozen=True, slots=True)
class Model:
    """A checkpoint's shape. ``positions`` is the longest sequence it knows, None where it does not say; ``tensors`` has
    the shape of each by name; ``linear_layers`` of ``layers`` keep a state of fixed size instead of keys and values."""

    architecture: str
    config: Mapping[str, Any]
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    linear_layers: int
    positions: int | None
    tensors: Mapping[str, tuple[int, ...]]

    def size(self, name: str) -> int:
        """A whole number of config.json, 0 where it is not there."""
        value = self.config.get(name)
        return value if type(value) is int else 0


def read_model(folder: Path) -> Model:
    """The model in ``folder``; PlanError where its files say too little."""
    return _model(_read_json(folder / "config.json"), folder / "config.json", dict(_tensors(folder)))


def known_model(policy: PolicyFacts) -> Model | None:
    """The policy, wherever it is; None where nothing is known of it."""
    if policy.vocab_size:
        return read_model(policy.checkpoint)
    return _model(policy.config, Path("policy.config"), policy.tensors) if policy.tensors else None


def _model(top: Mapping[str, Any], source: Path, tensors: Mapping[str, tuple[int, ...]]) -> Model:
    config = {**top, **top.get("text_config", {})}
    try:
        layers, hidden, heads = (int(config[name]) for name in (
            "num_hidden_layers", "hidden_size", "num_attention_heads"))
        architecture = str(top["architectures"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PlanError(f"{source} does not say what an engine must know: {error}",
                        hint="architectures, num_hidden_layers, hidden_size, num_attention_heads") from error
    return Model(
        architecture=architecture, config=config, layers=layers, heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        experts=int(config.get("num_experts") or config.get("num_local_experts") or 0),
        linear_layers=sum(kind == "linear_attention" for kind in config.get("layer_types") or ()),
        positions=config.get("max_position_embeddings"), tensors=tensors)


def _tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    index = folder / "model.safetensors.index.json"
    names = sorted(set(_read_json(index)["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    for name in names:
        for tensor, entry in _head(folder / name).tensors.items():
            yield tensor, entry.shape


def _head(path: Path) -> Head:
    try:
        return head_of(path)
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} is no safetensors file: {error}",
                        hint="policy.checkpoint must name a whole folder in HF form") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read: {error}",
                        hint="policy.checkpoint must name a whole folder in HF form") from error
