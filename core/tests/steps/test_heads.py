from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from grpo_bench.steps.heads import Entry, head_of

ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def written(folder: Path, head: Any, length: int | None = None) -> Path:
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    file = folder / "x.safetensors"
    file.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw)
    return file


@given(shapes=st.dictionaries(st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
                              st.lists(st.integers(0, 4), max_size=3), max_size=5))
def test_what_was_saved_is_what_the_head_says(tmp_path_factory: pytest.TempPathFactory,
                                              shapes: dict[str, list[int]]) -> None:
    tensors = {name: np.full(shape, number, np.float32) for number, (name, shape) in enumerate(shapes.items())}
    file = tmp_path_factory.mktemp("heads") / "x.safetensors"
    file.write_bytes(content := save(tensors, {"format": "pt"}))
    head = head_of(file)
    assert head.tensors.keys() == tensors.keys()
    for name, entry in head.tensors.items():
        assert (entry.dtype, list(entry.shape)) == ("F32", shapes[name])
        assert content[head.data + entry.start:head.data + entry.stop] == tensors[name].tobytes()


@pytest.mark.parametrize("content", [b"", b"1234567", struct.pack("<Q", 0), struct.pack("<Q", 1) + b"{",
                                     b"\xff" * 20, struct.pack("<Q", 100) + b"{}"])
def test_a_file_that_is_too_short_for_its_head_has_none(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.raises(ValueError, match="no head"):
        head_of(file)


def test_a_head_beyond_all_measure_is_not_read(tmp_path: Path) -> None:
    file = written(tmp_path, b"{}", length=100_000_001)
    with file.open("r+b") as opened:
        opened.truncate(200_000_000)
    with pytest.raises(ValueError, match="no head: 200,000,000 bytes, of which it would be 100,000,001"):
        head_of(file)


@pytest.mark.parametrize(("head", "message"), [
    (b"{]", "Expecting"), (b"\xff\xff", "decode"), ([1], "its head is no table"),
    ({"w": 1}, "does not say dtype, shape and place of 'w'"), ({"w": {**ENTRY, "dtype": 4}}, "'w'"),
    ({"w": {**ENTRY, "shape": [-1]}}, "'w'"), ({"w": {**ENTRY, "shape": [1.0]}}, "'w'"),
    ({"w": {**ENTRY, "shape": 1}}, "'w'"), ({"w": {**ENTRY, "data_offsets": [4, 0]}}, "'w'"),
    ({"w": {**ENTRY, "data_offsets": [-4, 0]}}, "'w'"), ({"w": {**ENTRY, "data_offsets": [0]}}, "'w'"),
])
def test_a_head_that_says_too_little_is_told(tmp_path: Path, head: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        head_of(written(tmp_path, head))
    assert head_of(written(tmp_path, {"w": ENTRY, "__metadata__": {}})).tensors == {"w": Entry("F32", (1,), 0, 4)}


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        head_of(tmp_path / "none")
