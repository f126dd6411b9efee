"""The torch trainer on a device against the same computation in float64 on the CPU: log-probabilities, gradient, and
the loss and gradient norm of three updates. Both start from one checkpoint and take the same batch each time.

TF32 has no bound: its router may choose other experts where two are nearly alike.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from grpo_bench.contract import LossSettings, TrainBatch, WorkerContext
from grpo_bench.steps.update import policy_loss
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config, load, log_probabilities, pack, save
from grpo_bench_trainer_torch import TorchTrainerConfig
from grpo_bench_trainer_torch.weights import FlatWeights
from grpo_bench_trainer_torch.worker import TrainerWorker, make
from torch import Tensor

from ._gpu_errors import Error, compared, matrix_precision

_UPDATES = 3
_KINDS = {
    "dense": Qwen3Config(vocab_size=997, num_key_value_heads=2, initializer_range=0.1),
    "MoE": Qwen3Config(vocab_size=997, num_experts=8, initializer_range=0.1),
}
LOSS = LossSettings()


@dataclass(frozen=True, slots=True)
class _Learned:
    """Log-probabilities [N] and gradient [size] before the first update; loss and gradient norm of each [updates]."""

    log_probabilities: Tensor
    gradient: Tensor
    losses: Tensor
    norms: Tensor


def trainer_errors(device: str, scratch: Path) -> Iterator[Error]:
    batch = make_batch(rows=8, mean=64, vocabulary=997)
    for kind, config in _KINDS.items():
        checkpoint = make_checkpoint(config, scratch / kind)
        start = np.zeros(len(batch.ids), np.float32)
        at = np.flatnonzero(batch.token_mask)
        with torch.no_grad():
            start[at] = _scores(load(checkpoint), batch).numpy()
        batch = replace(batch, prev_log_probabilities=start, gen_log_probabilities=start)
        expected = _learned(load(checkpoint).double(), batch)
        size = f"{len(batch.ids):,} tokens"
        for precision in ("float32", "tf32") if device == "cuda" else ("float32",):
            with matrix_precision(precision):
                gradient = _learned(load(checkpoint).to(device), batch).gradient
                values, losses, norms = asyncio.run(_trained(checkpoint, batch, device, scratch))
            bounds = (1e-3, 1e-2) if precision == "float32" else None
            yield compared(f"{kind} trainer: log-probabilities", size, precision,
                           (torch.from_numpy(values[at]), gradient),
                           (expected.log_probabilities, expected.gradient), bounds)
            yield compared(f"{kind} trainer: {_UPDATES} losses and norms", size, precision,
                           (torch.tensor(losses), torch.tensor(norms)), (expected.losses, expected.norms), bounds)


def make_worker(checkpoint: Path, device: str, scratch: Path, **settings: Any) -> TrainerWorker:
    """The trainer's only rank."""
    plugin = TorchTrainerConfig(clip_norm=None, learning_rate=1e-4, batch_tokens=2**20, reuse_forward=False, **settings)
    config = {"plugin": plugin.model_dump(), "loss": LOSS.model_dump(), "threads": torch.get_num_threads(),
              "checkpoint": str(checkpoint), "device": device, "temperature": 1.0}
    return make(WorkerContext(group="trainer", rank=0, size=1, config=config, rendezvous=str(scratch), connect=None,
                              clock=SimpleNamespace(now_utc=lambda: ""), logger=None))


def make_checkpoint(config: Qwen3Config, folder: Path) -> Path:
    model = Qwen3(config)
    model.initialize(torch.Generator().manual_seed(0))
    save(model, folder, "float32")
    return folder


def make_batch(rows: int, mean: int, vocabulary: int) -> TrainBatch:
    """``rows`` x ``mean`` tokens: rows of half the mean to three halves, in groups of four with a prompt of a quarter
    of it in common. After the prompt three tokens in four are sampled, the others are the environment's."""
    random = np.random.default_rng(0)
    lengths = random.permutation(np.linspace(mean // 2, mean + mean // 2, rows).round().astype(np.int64))
    prompt, parts, masks = np.zeros(0, np.int64), [], []
    for row, length in enumerate(lengths):
        if row % 4 == 0:
            prompt = random.integers(vocabulary, size=mean // 4)
        parts.append(np.concatenate((prompt, random.integers(vocabulary, size=length - len(prompt)))))
        masks.append((np.arange(length) >= len(prompt)) & (np.arange(length) % 32 < 24))
    mask = np.concatenate(masks)
    uniform = (mask * -math.log(vocabulary)).astype(np.float32)
    return TrainBatch(
        step=1, ids=np.concatenate(parts).astype(np.int32), offsets=np.concatenate(([0], np.cumsum(lengths))),
        rollout=np.arange(rows, dtype=np.int32), token_mask=mask, gen_log_probabilities=uniform,
        sample_mask=np.ones(rows, np.float32), advantages=random.normal(size=rows).astype(np.float32),
        rewards=np.ones(rows, np.float32), prev_log_probabilities=uniform, n_tokens=float(mask.sum()),
        n_sequences=float(rows))


async def _trained(checkpoint: Path, batch: TrainBatch, device: str,
                   scratch: Path) -> tuple[np.ndarray, list[float], list[float]]:
    """Log-probabilities [N] before the updates; loss and gradient norm of each."""
    worker = make_worker(checkpoint, device, scratch)
    values = np.zeros(len(batch.ids), np.float32)
    at, found = await worker.log_probabilities(batch, "current")
    values[at] = found
    ended = [worker.apply([await worker.accumulate(batch)]) for _ in range(_UPDATES)]
    return values, [one["metrics"]["loss"] for one in ended], [one["grad_norm"] for one in ended]


def _learned(model: Qwen3, batch: TrainBatch) -> _Learned:
    """The updates written out, in the model's precision and in one piece, for a batch generated by the same weights."""
    weights = FlatWeights(model, TorchTrainerConfig())
    row = np.repeat(np.arange(batch.rows), np.diff(batch.offsets))[batch.token_mask]
    like = weights.values

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(like)

    prev = tensor(batch.gen_log_probabilities[batch.token_mask])
    losses, norms, first = [], [], None
    for _ in range(_UPDATES):
        weights.gradient.zero_()
        values = _scores(model, batch)
        result = policy_loss(
            values, torch.from_numpy(row).to(like.device), gen=prev, prev=prev, ref=None,
            advantages=tensor(batch.advantages), rewards=tensor(batch.rewards), sample_mask=tensor(batch.sample_mask),
            n_tokens=batch.n_tokens, n_sequences=batch.n_sequences, n_positive_tokens=1.0, settings=LOSS)
        result.loss.backward()
        first = first or (values.detach(), weights.gradient.clone())
        losses.append(result.loss.detach())
        norms.append(torch.linalg.vector_norm(weights.gradient))
        weights.apply(1e-4)
    assert first is not None
    return _Learned(*first, torch.stack(losses), torch.stack(norms))


def _scores(model: Qwen3, batch: TrainBatch) -> Tensor:
    packed = pack(batch.ids, batch.offsets, share_prefixes=False, device=model.embed.device)
    return log_probabilities(model, packed, batch.ids, np.flatnonzero(batch.token_mask), 1.0)
