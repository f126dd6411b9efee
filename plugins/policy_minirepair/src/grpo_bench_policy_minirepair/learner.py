"""What pretraining asks of a model, and the Qwen3 family's answer to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from grpo_bench_model_qwen3 import Qwen3, assign, hf_views, load_tensors, log_probabilities, pack, read_config, save

Of = Callable[[nn.Parameter], Tensor]
"""A parameter's data, its gradient, or any tensor of its shape."""


class Learner(nn.Module):
    """A causal language model that can be pretrained; it computes in float32."""

    def log_probabilities(self, ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer],
                          at: npt.NDArray[np.integer]) -> Tensor:
        """Log-probability [m] of the flat tokens ``at`` [m] (none of them first in its row), given those before in
        their rows ``offsets[r]:offsets[r + 1]``."""
        raise NotImplementedError

    def matrices(self, of: Of) -> dict[str, Tensor]:
        """Every matrix that Muon trains under a name of its own, as views of ``of``; AdamW trains the other weights."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write configuration and bfloat16 weights in Hugging Face form."""
        raise NotImplementedError


class Qwen3Learner(Qwen3, Learner):
    """Qwen3, dense or sparse; documents that begin alike share computation."""

    def log_probabilities(self, ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer],
                          at: npt.NDArray[np.integer]) -> Tensor:
        return log_probabilities(self, pack(ids, offsets), ids, at, 1.0)

    def matrices(self, of: Of) -> dict[str, Tensor]:
        return {name: view for name, view in hf_views(self, of).items() if "_proj" in name}

    def save(self, folder: Path) -> None:
        save(self, folder)


def load_qwen3(folder: Path) -> Qwen3Learner:
    """The model of a folder."""
    model = Qwen3Learner(read_config(folder))
    assign(model, load_tensors(folder))
    return model
