"""The policy's ``config.json`` in the words of the rules' model table: one flat mapping."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LINEAR, _FULL = "linear_attention", "full_attention"


def model_of(folder: Path) -> Mapping[str, Any] | None:
    """The table of the checkpoint in ``folder``; None where there is none that could be read."""
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return model_table(config) if isinstance(config, dict) else None


def model_table(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says, the part about text where it has several, with three values that it says in other ways:
    ``architecture``, ``layout`` of the layers, and ``rope_size``, the dimensions of a head that are rotated."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    found = {**text, "architecture": str(config.get("model_type", "")).removesuffix("_text"), "layout": _layout(text)}
    rope = text.get("rope_parameters")
    share = {**text, **(rope if isinstance(rope, Mapping) else {})}.get("partial_rotary_factor")
    if isinstance(share, int | float) and isinstance(size := text.get("head_dim"), int):
        found["rope_size"] = round(size * share)
    return found


def _layout(text: Mapping[str, Any]) -> str:
    """Which kinds of layers follow each other, as often as that is repeated."""
    kinds = text.get("layer_types")
    count, every = text.get("num_hidden_layers"), text.get("full_attention_interval")
    if not isinstance(kinds, Sequence) and isinstance(count, int) and isinstance(every, int) and every > 0:
        kinds = [_LINEAR if (number + 1) % every else _FULL for number in range(count)]
    kinds = list(map(str, kinds)) if isinstance(kinds, Sequence) else []
    for length in range(1, len(kinds) + 1):
        times = len(kinds) // length
        if kinds[:length] * times == kinds:
            return f"{times} x ({', '.join(kinds[:length])})"
    return "not said"
