"""What an HF folder says it holds, read without torch and without the weights themselves.

A safetensors file begins with the length of its head (8 bytes, little-endian) and the head: JSON with dtype, shape and
place of each tensor.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError, TensorSpec

DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8",
          "F8_E4M3": "float8_e4m3fn"}
_LONGEST = 2**28


def tensors_of(folder: Path) -> tuple[TensorSpec, ...]:
    """Every tensor of the folder's safetensors files."""
    found: dict[str, TensorSpec] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, entry in head_of(file).items():
            if name != "__metadata__":
                found[name] = TensorSpec(name, tuple(entry["shape"]), DTYPES.get(entry["dtype"], str(entry["dtype"])))
    return tuple(found.values())


def head_of(file: Path) -> Mapping[str, Any]:
    """The head of one file; InputError where there is none."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= _LONGEST:
                raise ValueError(f"a head of {length} bytes")
            head = json.loads(opened.read(length))
        if not isinstance(head, dict):
            raise ValueError("its head is no table")
        return head
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
