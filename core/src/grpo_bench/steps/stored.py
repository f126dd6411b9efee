"""The tensors of a folder of weights, byte for byte as its safetensors files hold them.

A file begins with the length of its head (8 bytes, little-endian) and the head, JSON with dtype, shape and place of
each tensor; the places count from the end of the head.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import PluginError, TensorSpec

FILES = "*.safetensors"
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "U8": "uint8"}
_LONGEST_HEAD = 2**28


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    start: int
    size: int


class StoredTensors:
    """All tensors of a folder, or of those of its ``files``; nothing but heads is read before ``read`` asks for it.
    PluginError where a file is none in safetensors form, or holds numbers of a kind that no transfer carries."""

    def __init__(self, folder: Path, files: str = FILES) -> None:
        self._places: dict[TensorSpec, _Place] = {}
        for file, head, size in _heads(folder, files):
            with _named(file):
                self._places.update(_tensors(file, head, size))

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return tuple(self._places)

    def read(self, spec: TensorSpec) -> bytes:
        place = self._places[spec]
        with place.file.open("rb") as handle:
            handle.seek(place.start)
            return handle.read(place.size)


def tensor_names(folder: Path) -> frozenset[str]:
    """The names of all tensors of a folder, whatever numbers they hold; PluginError where a file is none in safetensors
    form."""
    return frozenset(name for _, head, _ in _heads(folder, FILES) for name in head)


def _heads(folder: Path, files: str) -> Iterator[tuple[Path, dict[str, Any], int]]:
    """Each file with its head, metadata left out, and the head's length."""
    for file in sorted(folder.glob(files)):
        with _named(file):
            head, size = _head(file)
        yield file, head, size


def _tensors(file: Path, head: Mapping[str, Any], size: int) -> Iterator[tuple[TensorSpec, _Place]]:
    for name, entry in sorted(head.items()):
        start, end = entry["data_offsets"]
        spec = TensorSpec(name, tuple(entry["shape"]), _DTYPES[entry["dtype"]])
        yield spec, _Place(file, 8 + size + start, end - start)


@contextmanager
def _named(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PluginError(f"{file} holds no tensors that can be sent: {type(error).__name__}: {error}",
                          hint=f"a file in safetensors form, with dtypes {', '.join(_DTYPES)}") from error


def _head(file: Path) -> tuple[dict[str, Any], int]:
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        if size > _LONGEST_HEAD:
            raise ValueError(f"its head would have {size} bytes")
        head = json.loads(handle.read(size))
    head.pop("__metadata__", None)
    return head, size
