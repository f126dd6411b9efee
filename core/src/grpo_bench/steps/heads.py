"""What a safetensors file holds, by its head: no weight is read, and no library that computes with them.

A file begins with the length of its head (8 bytes, little-endian) and the head, JSON with dtype, shape and place of
each tensor; the places count from the end of the head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Entry", "Head", "head_of"]

_LONGEST = 100_000_000
"""Bytes of a head; the safetensors library reads none that is longer."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its dtype in safetensors' words, its shape, and the range of its bytes among the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Head:
    """The tensors of a file by name, as far as the head says, and where in the file the data begin."""

    tensors: Mapping[str, Entry]
    data: int


def head_of(file: Path) -> Head:
    """The head of a file; OSError where it cannot be read, ValueError that says what is wrong with it."""
    with file.open("rb") as opened:
        total = os.fstat(opened.fileno()).st_size
        length = int.from_bytes(opened.read(8), "little")
        if total < 8 or not 2 <= length <= min(_LONGEST, total - 8):
            raise ValueError(f"no head: {total:,} bytes" + (f", of which it would be {length:,}" if total >= 8 else ""))
        head = json.loads(opened.read(length))
    if not isinstance(head, dict):
        raise ValueError("its head is no table")
    return Head({name: _entry(name, said) for name, said in head.items() if name != "__metadata__"}, 8 + length)


def _entry(name: str, said: Any) -> Entry:
    match said:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if (
                all(type(size) is int and size >= 0 for size in shape) and 0 <= start <= stop):
            return Entry(dtype, tuple(shape), start, stop)
    raise ValueError(f"its head does not say dtype, shape and place of {name!r}")
