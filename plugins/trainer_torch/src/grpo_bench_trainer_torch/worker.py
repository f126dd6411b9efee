"""One rank of the trainer.

A step is two calls, each made to all ranks: ``accumulate`` computes this rank's share of the gradient and publishes it;
``apply`` adds up what all ranks published, clips and steps the optimizer, on every rank alike, so that weights stay
equal bit for bit. No random numbers are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from grpo_bench.contract import BatchError, Floats, LossSettings, TensorSpec, TrainBatch, Transfer, WorkerContext
from grpo_bench.steps import positive_tokens
from grpo_bench.steps.transport import send_tensors
from grpo_bench.steps.update import combine_metrics, policy_loss
from grpo_bench_model_qwen3 import Packed, Qwen3, assign, hf_views, load, load_tensors, log_probabilities, pack, save

from .config import TorchTrainerConfig
from .schedule import learning_rate
from .shares import Part, share
from .weights import FlatWeights, SharedGradients

_OPTIMIZER_FILE = "trainer.safetensors"


class TrainerWorker:
    """Weights, optimizer and this rank's share of every batch."""

    def __init__(self, context: WorkerContext) -> None:
        config = context.config
        torch.set_num_threads(config["threads"])
        self._config = TorchTrainerConfig.model_validate(config["plugin"])
        self._loss = LossSettings.model_validate(config["loss"])
        self._temperature: float = config["temperature"]
        self._checkpoint: str = config["checkpoint"]
        self._rank, self._ranks, self._clock = context.rank, context.size, context.clock
        self._weights = FlatWeights(load(self._checkpoint), self._config)
        self._gradients = SharedGradients(context.rendezvous, context.rank, context.size, self._weights.gradient.numel())
        self._reference: Qwen3 | None = None

    def tensors(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(name, tuple(view.shape), "float32") for name, view in hf_views(self._weights.model).items())

    async def log_probabilities(self, batch: TrainBatch,
                                weights: Literal["current", "reference"]) -> tuple[npt.NDArray[np.int64], Floats]:
        """Flat indices [m] of the sampled tokens in this rank's rows, and their log-probabilities [m]."""
        model = self._weights.model if weights == "current" else self._reference_model()
        at, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
        for part in self._parts(batch):
            ids, wanted = batch.ids[part.tokens], np.flatnonzero(batch.token_mask[part.tokens])
            with torch.inference_mode():
                found = log_probabilities(model, self._pack(ids, part), ids, wanted, self._temperature)
            at.append(part.tokens[wanted])
            values.append(found.numpy())
            await asyncio.sleep(0)
        return np.concatenate(at), np.concatenate(values)

    async def accumulate(self, batch: TrainBatch) -> dict[str, float]:
        """Publish this rank's gradient; returns its share of the metrics."""
        self._weights.gradient.zero_()
        positive = positive_tokens(batch)
        metrics = []
        for part in self._parts(batch):
            metrics.append(self._backward(batch, part, positive))
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
        return await send_tensors(transfer, lambda spec: views[spec.name].contiguous().numpy())

    def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        save(self._weights.model, folder, "float32", source=self._checkpoint)
        if what == "full":
            self._weights.save_optimizer(folder / _OPTIMIZER_FILE)

    def load(self, folder: Path) -> None:
        assign(self._weights.model, load_tensors(folder))
        self._weights.load_optimizer(folder / _OPTIMIZER_FILE)

    def weights_sha256(self) -> str:
        return self._weights.sha256()

    def _parts(self, batch: TrainBatch) -> list[Part]:
        return share(batch, rank=self._rank, ranks=self._ranks, batch_tokens=self._config.batch_tokens,
                     share_prefixes=self._config.share_prefixes)

    def _pack(self, ids: npt.NDArray[np.int32], part: Part) -> Packed:
        return pack(ids, part.offsets, share_prefixes=self._config.share_prefixes)

    def _backward(self, batch: TrainBatch, part: Part, positive: float) -> Mapping[str, torch.Tensor]:
        ids, wanted = batch.ids[part.tokens], np.flatnonzero(batch.token_mask[part.tokens])
        packed = self._pack(ids, part)
        at = part.tokens[wanted]
        cur = log_probabilities(self._weights.model, packed, ids, wanted, self._temperature)
        row = np.repeat(np.arange(len(part.rows)), np.diff(part.offsets))[wanted]
        prev, ref = batch.prev_log_probabilities, batch.reference_log_probabilities
        result = policy_loss(
            cur, torch.from_numpy(row), gen=torch.from_numpy(batch.gen_log_probabilities[at]),
            prev=None if prev is None else torch.from_numpy(prev[at]), ref=None if ref is None else torch.from_numpy(ref[at]),
            advantages=torch.from_numpy(batch.advantages[part.rows]), rewards=torch.from_numpy(batch.rewards[part.rows]),
            sample_mask=torch.from_numpy(batch.sample_mask[part.rows]), n_tokens=batch.n_tokens,
            n_sequences=batch.n_sequences, n_positive_tokens=positive, settings=self._loss)
        result.loss.backward()
        return result.metrics

    def _reference_model(self) -> Qwen3:
        if self._reference is None:
            self._reference = load(self._checkpoint)
        return self._reference


def make(context: WorkerContext) -> TrainerWorker:
    """The group's target."""
    return TrainerWorker(context)
