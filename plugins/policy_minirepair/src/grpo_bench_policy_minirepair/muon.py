"""Muon for the matrices, AdamW for the rest.

Muon takes the momentum of a matrix's gradient and replaces its singular values by about 1 (Newton-Schulz iteration).
Which matrices a model has is the model's word; fused weights are treated piece by piece.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .learner import Learner

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95
_DECAY = 0.01


def orthogonalise(stack: Tensor) -> Tensor:
    """[n, rows, columns] -> the same with all singular values near 1."""
    a, b, c = _COEFFICIENTS
    x = stack / (stack.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    for _ in range(_ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


def _memory(tensor: Tensor) -> int:
    """Equal for a parameter and the views of it."""
    return tensor.untyped_storage().data_ptr()


class Optimizer:
    """Gradients are the same on every worker; the work of Muon is shared among them."""

    def __init__(self, model: Learner, muon_rate: float, adam_rate: float, rank: int, workers: int) -> None:
        self._rank, self._workers = rank, workers
        self._model, self._rate = model, muon_rate
        self._groups: dict[tuple[int, ...], list[str]] = {}
        matrices = model.matrices(lambda parameter: parameter.data)
        for name, view in matrices.items():
            self._groups.setdefault(tuple(view.shape), []).append(name)
        self._moments = {shape: torch.zeros(len(names), *shape) for shape, names in self._groups.items()}
        covered = {_memory(view) for view in matrices.values()}
        rest = [p for p in model.parameters() if _memory(p) not in covered]
        self._adam_rate = adam_rate
        self._adam = torch.optim.AdamW(rest, lr=adam_rate, betas=(0.9, 0.98), weight_decay=0.0)

    def _shared(self, stack: Tensor) -> Tensor:
        """Every worker orthogonalises its share of the matrices."""
        update, mine = torch.zeros_like(stack), slice(self._rank, None, self._workers)
        update[mine] = orthogonalise(stack[mine])
        if self._workers > 1:
            dist.all_reduce(update)
        return update

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """One step of both; ``scale`` multiplies both learning rates."""
        weights = self._model.matrices(lambda parameter: parameter.data)
        gradients = self._model.matrices(lambda parameter: parameter.grad)  # type: ignore[arg-type,return-value]
        for shape, names in self._groups.items():
            gradient = torch.stack([gradients[name] for name in names])
            moment = self._moments[shape]
            moment.lerp_(gradient, 1 - _MOMENTUM)
            update = self._shared(gradient.lerp(moment, _MOMENTUM)) * max(1.0, shape[0] / shape[1]) ** 0.5
            for name, change in zip(names, update, strict=True):
                weights[name].mul_(1 - self._rate * scale * _DECAY).sub_(change, alpha=self._rate * scale)
        for group in self._adam.param_groups:
            group["lr"] = self._adam_rate * scale
        self._adam.step()
