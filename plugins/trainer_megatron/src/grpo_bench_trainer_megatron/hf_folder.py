"""Weights written as an HF folder, shard by shard, with what lies beside the weights in the folder they came from."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
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
    """Takes the weights that ``specs`` announce, in that order, and holds one shard of them at a time."""

    def __init__(self, folder: Path, source: Path, specs: Sequence[TensorSpec]) -> None:
        self._folder, self._source, self._specs = folder, source, specs
        self._shards = _shards(specs)
        self._held: dict[str, torch.Tensor] = {}
        self._where: dict[str, str] = {}
        self._written = 0

    def add(self, name: str, weight: torch.Tensor) -> None:
        self._held[name] = weight.cpu().contiguous().clone()
        if len(self._held) == self._shards[self._written]:
            total = len(self._shards)
            self._written += 1
            file = "model.safetensors" if total == 1 else f"model-{self._written:05d}-of-{total:05d}.safetensors"
            save_file(self._held, self._folder / file, metadata={"format": "pt"})
            self._where |= dict.fromkeys(self._held, file)
            self._held = {}

    def close(self) -> None:
        """Write what describes the weights. The configuration says the dtype they are stored in."""
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
