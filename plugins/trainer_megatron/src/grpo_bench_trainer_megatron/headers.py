"""What an HF folder says it holds, read without torch and without the weights themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError, TensorSpec
from grpo_bench.steps import Head, head_of

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8",
          "F8_E4M3": "float8_e4m3fn"}


def tensors_of(folder: Path) -> tuple[TensorSpec, ...]:
    """Every tensor of the folder's safetensors files; InputError where one of them is none."""
    return tuple({name: TensorSpec(name, entry.shape, DTYPES.get(entry.dtype, entry.dtype))
                  for file in sorted(folder.glob("*.safetensors")) for name, entry in _head(file).tensors.items()
                  }.values())


def _head(file: Path) -> Head:
    try:
        return head_of(file)
    except (OSError, ValueError) as error:
        raise InputError(f"{file} is no safetensors file: {error}", hint="see policy.checkpoint") from None


def model_config(folder: Path) -> Mapping[str, Any]:
    """The language model's part of ``config.json``."""
    try:
        return text_config(json.loads((folder / "config.json").read_text("utf-8")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / 'config.json'} cannot be read: {error}", hint="see policy.checkpoint") from None


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration, wherever it stands in it."""
    return {**config, **config.get("text_config", {})}
