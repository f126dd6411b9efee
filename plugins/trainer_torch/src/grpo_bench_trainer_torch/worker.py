"""One rank of the trainer.

A step is two calls, each made to all ranks: ``accumulate`` computes this rank's share of the gradient and publishes it;
``apply`` adds up what all ranks published, clips and steps the optimizer, on every rank alike, so that weights stay
equal bit for bit. No random numbers are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from grpo_bench.contract import BatchError, Floats, LossSettings, TensorSpec, TrainBatch, Transfer, WorkerContext
from grpo_bench.steps import positive_tokens
from grpo_bench.steps.transport import send_tensors
from grpo_bench.steps.update import combine_metrics, policy_loss
from grpo_bench_model_qwen3 import Qwen3, assign, hf_views, load, load_tensors, log_probabilities, pack, save

from .config import TorchTrainerConfig
from .schedule import learning_rate
from .shares import Part, share
from .weights import FlatWeights, SharedGradients

_OPTIMIZER_FILE = "trainer.safetensors"


@dataclass(frozen=True)
class _Forward:
    """Flat indices [m] of a part's sampled tokens, the row of each within the part, their log-probabilities [m]."""

    at: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    values: torch.Tensor


@dataclass(frozen=True)
class _Kept:
    """Forward passes with their gradients still to come, of one batch under the weights after ``step`` updates."""

    step: int
    batch: TrainBatch
    forwards: list[_Forward]

    def serves(self, step: int, batch: TrainBatch) -> bool:
        mine = self.batch
        return step == self.step and all(np.array_equal(a, b) for a, b in (
            (mine.ids, batch.ids), (mine.offsets, batch.offsets), (mine.token_mask, batch.token_mask)))


class TrainerWorker:
    """Weights, optimizer and this rank's share of every batch."""

    def __init__(self, context: WorkerContext) -> None:
        config = context.config
        torch.set_num_threads(config["threads"])
        self._config = TorchTrainerConfig.model_validate(config["plugin"])
        self._loss = LossSettings.model_validate(config["loss"])
        self._temperature: float = config["temperature"]
        self._checkpoint: str = config["checkpoint"]
        self._device = torch.device(config["device"])
        self._rank, self._ranks, self._clock = context.rank, context.size, context.clock
        self._weights = FlatWeights(load(self._checkpoint).to(self._device), self._config)
        self._gradients = SharedGradients(context.rendezvous, context.rank, context.size, len(self._weights.gradient))
        self._reference: Qwen3 | None = None
        self._kept: _Kept | None = None

    def tensors(self) -> tuple[TensorSpec, ...]:
        views = hf_views(self._weights.model)
        return tuple(TensorSpec(name, tuple(view.shape), "float32") for name, view in views.items())

    async def log_probabilities(self, batch: TrainBatch,
                                weights: Literal["current", "reference"]) -> tuple[npt.NDArray[np.int64], Floats]:
        """Flat indices [m] of the sampled tokens in this rank's rows, and their log-probabilities [m]."""
        model = self._weights.model if weights == "current" else self._reference_model()
        keep = self._config.reuse_forward and weights == "current"
        self._kept = None
        at, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        forwards = []
        for part in self._parts(batch):
            with torch.set_grad_enabled(keep):
                forward = self._forward(model, batch, part)
            at.append(forward.at)
            values.append(forward.values.detach().cpu().numpy())
            forwards.append(forward)
            await asyncio.sleep(0)
        if keep:
            self._kept = _Kept(self._weights.step, batch, forwards)
        return np.concatenate(at), np.concatenate(values)

    async def accumulate(self, batch: TrainBatch) -> dict[str, float]:
        """Publish this rank's gradient; returns its share of the metrics."""
        self._weights.gradient.zero_()
        positive = positive_tokens(batch)
        metrics = []
        kept, self._kept = self._kept, None
        forwards = kept.forwards if kept is not None and kept.serves(self._weights.step, batch) else None
        for part in self._parts(batch):
            forward = forwards.pop(0) if forwards is not None else self._forward(self._weights.model, batch, part)
            metrics.append(self._backward(batch, part, forward, positive))
            await asyncio.sleep(0)
        self._gradients.publish(self._weights.gradient)
        return combine_metrics(metrics)

    def apply(self, shares: Sequence[Mapping[str, float]]) -> Mapping[str, Any]:
        """Step the optimizer with the sum of what all ranks published; ``shares`` are all ranks' metrics."""
        weights = self._weights
        self._gradients.sum_into(weights.gradient)
        norm = float(torch.linalg.vector_norm(weights.gradient))
        if not np.isfinite(norm):
            raise BatchError(f"the gradient's norm is {norm}", hint="the weights were left as they are")
        if self._config.clip_norm is not None and norm > self._config.clip_norm:
            weights.gradient.mul_(self._config.clip_norm / (norm + 1e-6))
        rate = learning_rate(self._config, weights.step + 1)
        weights.apply(rate)
        return {"grad_norm": norm, "learning_rate": rate, "ended_at": self._clock.now_utc(),
                "metrics": combine_metrics(shares)}

    async def send(self, transfer: Transfer) -> int:
        views = hf_views(self._weights.model)
        return await send_tensors(transfer, lambda spec: views[spec.name].contiguous().cpu().numpy())

    def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        save(self._weights.model, folder, "float32", source=self._checkpoint)
        if what == "full":
            self._weights.save_optimizer(folder / _OPTIMIZER_FILE)

    def load(self, folder: Path) -> None:
        self._kept = None
        assign(self._weights.model, load_tensors(folder))
        self._weights.load_optimizer(folder / _OPTIMIZER_FILE)

    def weights_sha256(self) -> str:
        return self._weights.sha256()

    def _parts(self, batch: TrainBatch) -> list[Part]:
        return share(batch, rank=self._rank, ranks=self._ranks, batch_tokens=self._config.batch_tokens,
                     share_prefixes=self._config.share_prefixes)

    def _forward(self, model: Qwen3, batch: TrainBatch, part: Part) -> _Forward:
        ids, wanted = batch.ids[part.tokens], np.flatnonzero(batch.token_mask[part.tokens])
        packed = pack(ids, part.offsets, share_prefixes=self._config.share_prefixes, device=self._device)
        row = np.repeat(np.arange(len(part.rows)), np.diff(part.offsets))[wanted]
        return _Forward(part.tokens[wanted], row, log_probabilities(model, packed, ids, wanted, self._temperature))

    def _backward(self, batch: TrainBatch, part: Part, forward: _Forward,
                  positive: float) -> Mapping[str, torch.Tensor]:
        at = forward.at
        prev, ref = batch.prev_log_probabilities, batch.reference_log_probabilities
        result = policy_loss(
            forward.values, self._tensor(forward.row), gen=self._tensor(batch.gen_log_probabilities[at]),
            prev=None if prev is None else self._tensor(prev[at]), ref=None if ref is None else self._tensor(ref[at]),
            advantages=self._tensor(batch.advantages[part.rows]), rewards=self._tensor(batch.rewards[part.rows]),
            sample_mask=self._tensor(batch.sample_mask[part.rows]), n_tokens=batch.n_tokens,
            n_sequences=batch.n_sequences, n_positive_tokens=positive, settings=self._loss)
        result.loss.backward()
        return result.metrics

    def _reference_model(self) -> Qwen3:
        if self._reference is None:
            self._reference = load(self._checkpoint).to(self._device)
        return self._reference

    def _tensor(self, values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def make(context: WorkerContext) -> TrainerWorker:
    """The group's target."""
    return TrainerWorker(context)
