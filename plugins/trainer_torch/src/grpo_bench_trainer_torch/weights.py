"""A model's weights and gradients as one vector each, and Adam on them.

Parameters are views of the vector, so that gradients can be added up over ranks, clipped and applied at once. Matrices
come first, vectors (norms) last: weight decay is for matrices. The vectors of all ranks' gradients lie in one file of a
folder they share; each writes its own row and, once all have, adds up all rows in the same order.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo_bench_model_qwen3 import Qwen3, hf_views

from .config import TorchTrainerConfig


class FlatWeights:
    """``values`` and ``gradient`` [size], over the parameters of ``model``, and Adam's averages; ``step`` counts
    updates. Adam is written out here: importing torch's costs more than all updates of a short run."""

    def __init__(self, model: Qwen3, config: TorchTrainerConfig) -> None:
        self.model = model
        self.step = 0
        self._config = config
        self._parameters = sorted(model.parameters(), key=lambda parameter: parameter.ndim < 2)
        self.matrices = sum(parameter.numel() for parameter in self._parameters if parameter.ndim >= 2)
        self.values = torch.cat([parameter.detach().flatten() for parameter in self._parameters])
        self.gradient = torch.zeros_like(self.values)
        start = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            parameter.data = self.values[start:stop].view(parameter.shape)
            parameter.grad = self.gradient[start:stop].view(parameter.shape)
            start = stop
        self._mean, self._square = torch.zeros_like(self.values), torch.zeros_like(self.values)

    def apply(self, learning_rate: float) -> None:
        """One update of Adam with the gradient as it is."""
        self.step += 1
        (first, second), gradient = self._config.betas, self.gradient
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        self.values[:self.matrices].mul_(1 - learning_rate * self._config.weight_decay)
        scale = (self._square / (1 - second ** self.step)).sqrt_().add_(self._config.eps)
        self.values.addcdiv_(self._mean, scale, value=-learning_rate / (1 - first ** self.step))

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name, view in sorted(hf_views(self.model).items()):
            digest.update(name.encode() + b"\0" + view.contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def save_optimizer(self, file: Path) -> None:
        save_file({"mean": self._mean, "square": self._square, "step": torch.tensor(self.step)}, file)

    def load_optimizer(self, file: Path) -> None:
        """The state of :meth:`save_optimizer`; the weights themselves are the caller's."""
        stored = load_file(file)
        self._mean.copy_(stored["mean"])
        self._square.copy_(stored["square"])
        self.step = int(stored["step"])


class SharedGradients:
    """One row per rank in a file that all ranks map. A rank on its own has nothing to share: its gradient stays."""

    def __init__(self, folder: str, rank: int, ranks: int, size: int) -> None:
        file = Path(folder) / "gradients.bin"
        with open(file, "ab") as handle:
            handle.truncate(ranks * size * 4)
        self._rank = rank
        self._rows = np.memmap(file, np.float32, "r+", shape=(ranks, size))

    def publish(self, gradient: Tensor) -> None:
        if len(self._rows) > 1:
            self._rows[self._rank] = gradient.cpu().numpy()

    def sum_into(self, gradient: Tensor) -> None:
        """Add up all rows, in rank order."""
        if len(self._rows) > 1:
            first, *others = (torch.from_numpy(row) for row in self._rows)
            gradient.copy_(first)
            for row in others:
                gradient.add_(row.to(gradient.device))
