"""Qwen3.5-MoE as a model to pretrain, and its Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from grpo_bench_model_qwen3 import kernels

from .learner import Learner, Of
from .qwen35_config import Qwen35Config
from .qwen35_layers import Block, angles, lay_out


class Qwen35(Learner):
    """The model in float32, with an output matrix of its own."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        self.embed, self.head = (nn.Parameter(torch.empty(config.vocab_size, config.hidden_size)) for _ in range(2))
        self._layers = [Block(config, kind) for kind in config.layer_types]
        self.blocks = nn.ModuleList(self._layers)
        self.norm = nn.Parameter(torch.empty(config.hidden_size))

    @torch.no_grad()
    def initialize(self, generator: torch.Generator) -> None:
        """Draw all matrices; memories start out almost without decay."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.3 if name.endswith("conv") else 0.02, generator=generator)
            elif name.endswith("mixer.norm"):
                parameter.fill_(1.0)
            elif name.endswith("dt_bias"):
                parameter.fill_(-4.6)
            else:
                parameter.zero_()

    def log_probabilities(self, ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer],
                          at: npt.NDArray[np.integer]) -> Tensor:
        rows = lay_out(ids, offsets, self.config.linear_conv_kernel_dim)
        turn = angles(self.config, rows.packed.positions)
        x = F.embedding(rows.packed.ids, self.embed)
        for block in self._layers:
            x = block(x, rows, turn)
        x = x[torch.from_numpy(np.asarray(at) - 1)]
        logits = F.linear(kernels.rms_norm(x, 1.0 + self.norm, self.config.rms_norm_eps), self.head)
        return logits.log_softmax(-1).gather(1, torch.from_numpy(np.asarray(ids[at], np.int64))[:, None])[:, 0]

    def matrices(self, of: Of) -> dict[str, Tensor]:
        return {f"{layer}.{name}": view for layer, block in enumerate(self._layers)
                for name, view in block.matrices(of).items()}

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """Every weight under its published name."""
        named = {f"model.layers.{layer}.{name}": tensor for layer, block in enumerate(self._layers)
                 for name, tensor in block.tensors().items()}
        return {"model.embed_tokens.weight": self.embed, **named, "model.norm.weight": self.norm,
                "lm_head.weight": self.head}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        stored = {name: tensor.detach().to(torch.bfloat16).contiguous().clone()
                  for name, tensor in self.tensors().items()}
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config.to_hf(), indent=2) + "\n", "utf-8")


@torch.no_grad()
def load_qwen35(folder: Path) -> Qwen35:
    """The model that :meth:`Qwen35.save` wrote."""
    model = Qwen35(Qwen35Config.from_hf(json.loads((folder / "config.json").read_text("utf-8"))))
    parameters = list(model.parameters())
    sizes = [parameter.numel() for parameter in parameters]
    weights = torch.arange(sum(sizes), dtype=torch.float32)  # numbered, so that the names tell where each one belongs
    _fill(parameters, weights.split(sizes))
    stored = load_file(folder / "model.safetensors")
    for name, numbers in model.tensors().items():
        weights[numbers.long()] = stored[name].float()
    _fill(parameters, weights.split(sizes))
    return model


def _fill(parameters: list[nn.Parameter], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.copy_(value.view_as(parameter))
