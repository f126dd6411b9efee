"""Weights written as an HF folder, shard by shard, with what lies beside the weights in the folder they came from.

Every rank sees every weight go by, so that ranks take the shards in turn: each holds and writes its own, in a thread,
while the weights of the others' go by. What a file is called and what it has in it is the same whoever writes it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

from grpo_bench.contract import TensorSpec

SHARD_BYTES = 4 * 2**30
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf", ".index.json")


def size_of(spec: TensorSpec) -> int:
    """Bytes of one tensor."""
    return math.prod(spec.shape) * getattr(torch, spec.dtype).itemsize


class HfFolder:
    """Takes the weights that ``specs`` announce, in that order, on each of ``ranks``; a rank holds one shard of them at
    a time."""

    def __init__(self, folder: Path, source: Path, specs: Sequence[TensorSpec], rank: int = 0, ranks: int = 1) -> None:
        self._folder, self._source, self._specs = folder, source, specs
        self._rank, self._ranks = rank, ranks
        self._shards = _shards(specs)
        self._places = _places(self._shards)
        self._held: dict[str, torch.Tensor] = {}
        self._where: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, "shards")
        self._writing: Future[None] | None = None

    def add(self, name: str, weight: torch.Tensor) -> None:
        number, last = next(self._places)
        total = len(self._shards)
        file = "model.safetensors" if total == 1 else f"model-{number + 1:05d}-of-{total:05d}.safetensors"
        self._where[name] = file
        if number % self._ranks != self._rank:
            return
        if not self._held:
            self._written()
        self._held[name] = weight.cpu().contiguous().clone()
        if last:
            self._writing = self._thread.submit(_write_shard, self._held, self._folder / file)
            self._held = {}

    def close(self) -> None:
        """Wait for what is being written; the first rank writes what describes the weights. The configuration says the
        dtype they are stored in."""
        try:
            self._written()
        finally:
            self._thread.shutdown()
        if self._rank:
            return
        if len(self._shards) > 1:
            index = {"metadata": {"total_size": sum(map(size_of, self._specs))}, "weight_map": self._where}
            _write_json(self._folder / "model.safetensors.index.json", index)
        for file in sorted(self._source.iterdir()):
            if file.is_file() and not file.name.endswith(_WEIGHTS) and file.name != "config.json":
                shutil.copyfile(file, self._folder / file.name)
        config = json.loads((self._source / "config.json").read_text("utf-8"))
        for part in (config, config.get("text_config", {})):
            part |= {key: self._specs[0].dtype for key in ("dtype", "torch_dtype") if key in part}
        _write_json(self._folder / "config.json", config)

    def _written(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


def _write_shard(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """On the disk as seen from here: whoever flushes the whole checkpoint may do so on another host."""
    save_file(tensors, file, metadata={"format": "pt"})
    with file.open("rb") as written:
        os.fsync(written.fileno())


def _places(shards: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Of each tensor in order, its shard and whether it is the last one there."""
    for number, count in enumerate(shards):
        for at in range(count):
            yield number, at == count - 1


def _shards(specs: Sequence[TensorSpec]) -> list[int]:
    """How many tensors each shard has."""
    counts, held = [0], 0
    for spec in specs:
        size = size_of(spec)
        if counts[-1] and held + size > SHARD_BYTES:
            counts.append(0)
            held = 0
        counts[-1] += 1
        held += size
    return counts


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", "utf-8")
