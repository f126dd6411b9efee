"""Hugging Face folders: ``config.json``, ``model.safetensors`` and the tokenizer's files.

Experts are written one by one (``mlp.experts.3.gate_proj.weight``), as the published Qwen3-MoE checkpoints are; that is
what transformers, vLLM and Megatron Bridge read. Weights compute in float32 whatever they are stored as.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file

from .config import Qwen3Config
from .model import Qwen3, hf_views

StoredDtype = Literal["float32", "bfloat16"]

_BESIDE_WEIGHTS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                   "vocab.json", "merges.txt", "chat_template.jinja", "generation_config.json")


def load(folder: Path | str) -> Qwen3:
    """The model of a folder, ready to compute in float32."""
    model = Qwen3(read_config(folder))
    assign(model, load_tensors(folder))
    return model


def read_config(folder: Path | str) -> Qwen3Config:
    return Qwen3Config.from_hf(json.loads((Path(folder) / "config.json").read_text("utf-8")))


def load_tensors(folder: Path | str) -> dict[str, torch.Tensor]:
    """All weights of a folder under their names, as stored; a tied output matrix is left out."""
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(folder).glob("model*.safetensors")):
        tensors |= load_file(file)
    if read_config(folder).tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    return tensors


@torch.no_grad()
def assign(model: Qwen3, tensors: dict[str, torch.Tensor]) -> None:
    """Copy tensors under their Hugging Face names into the model; every weight exactly once, shapes equal."""
    views = hf_views(model)
    if missing := sorted(views.keys() - tensors.keys()):
        raise ValueError(f"{len(missing)} weights are missing, the first is {missing[0]}")
    if unknown := sorted(tensors.keys() - views.keys()):
        raise ValueError(f"{len(unknown)} tensors are no weights of this model, the first is {unknown[0]}")
    for name, view in views.items():
        if tensors[name].shape != view.shape:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(view.shape)}")
        view.copy_(tensors[name])


def save(model: Qwen3, folder: Path | str, dtype: StoredDtype = "bfloat16", source: Path | str | None = None) -> None:
    """Write the model; with ``source`` its tokenizer files and chat template come along."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: view.detach().to(getattr(torch, dtype)).contiguous().clone()
              for name, view in hf_views(model).items()}
    content = json.dumps(model.config.to_hf(dtype), indent=2)
    (folder / "config.json").write_text(content + "\n", "utf-8")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    if source is not None:
        for name in _BESIDE_WEIGHTS:
            if (Path(source) / name).is_file() and Path(source).resolve() != folder.resolve():
                shutil.copyfile(Path(source) / name, folder / name)
