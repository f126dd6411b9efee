"""The tensors of a checkpoint folder, byte for byte as its safetensors files hold them.

A file begins with the length of its head (8 bytes, little-endian) and the head, JSON with dtype, shape and place of
each tensor; the places count from the end of the head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import TensorSpec

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8"}


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    start: int
    size: int


class StoredTensors:
    """All tensors of a folder; nothing but heads is read before ``read`` asks for it."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[TensorSpec, _Place] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with file.open("rb") as handle:
                size = int.from_bytes(handle.read(8), "little")
                head = json.loads(handle.read(size))
            head.pop("__metadata__", None)
            for name, entry in sorted(head.items()):
                start, end = entry["data_offsets"]
                spec = TensorSpec(name, tuple(entry["shape"]), _DTYPES[entry["dtype"]])
                self._places[spec] = _Place(file, 8 + size + start, end - start)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self._places)

    def read(self, spec: TensorSpec) -> bytes:
        place = self._places[spec]
        with place.file.open("rb") as handle:
            handle.seek(place.start)
            return handle.read(place.size)
