"""The trainer: it lives in the engine's process and owns the mock weights.

An update adds the learning rate to the skill and moves the other weights by the sum over trained tokens of advantage
and a constant, so that each token leaves a trace even where the advantage is 0. A mock generator gets these weights.
Any other one gets the checkpoint's own tensors, which never change.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np

from grpo_bench.contract import BatchError, PluginContext, TensorSpec, TrainBatch, Transfer, UpdateStats
from grpo_bench.contract.values import Floats
from grpo_bench.steps.stored import StoredTensors
from grpo_bench.steps.transport import NAME as SAFETENSORS, send_tensors

from . import weights as w
from .config import TrainerConfig
from .faults import Faults, Spoilt, spend, spoil

TRACE = 0.01
"""What a token with advantage 0 still adds."""


class MockTrainer:
    """The contract's Trainer."""

    def __init__(self, context: PluginContext) -> None:
        self._config: TrainerConfig = context.config
        self._checkpoint = context.policy.checkpoint
        self._stored = StoredTensors(context.policy.checkpoint)
        self._transport: str = context.shared["transport"]
        self._clock = context.clock
        self._faults = Faults("trainer", self._config.faults)
        self._weights = w.initial()
        self._reference = w.initial()

    async def start(self) -> None:
        await self._faults.at("start")

    async def log_probabilities(self, batch: TrainBatch, weights: Literal["current", "reference"]) -> Floats:
        fault = await self._faults.at("log_probabilities", step=batch.step)
        await spend(self._config.log_probabilities_s)
        return spoil(self._log_probabilities(batch, self._weights if weights == "current" else self._reference), fault)

    async def update(self, batch: TrainBatch) -> UpdateStats:
        fault = await self._faults.at("update", step=batch.step)
        if not batch.n_tokens:
            raise BatchError("no token of this batch trains")
        await spend(self._config.update_s)
        gradient = self._gradient(batch)
        loss = -float(gradient[1:] @ self._weights[1:])
        if fault == "nan":
            loss, self._weights = float("nan"), np.full_like(self._weights, np.nan)
        elif fault is None:
            rate = self._config.learning_rate
            self._weights = self._weights + rate * gradient
            self._weights[0] += self._config.skill_per_update or rate
        return UpdateStats(loss=loss, grad_norm=float(np.linalg.norm(gradient)),
                           learning_rate=self._config.learning_rate, tokens=len(batch.ids),
                           ended_at=self._clock.now_utc())

    def tensors(self) -> tuple[TensorSpec, ...]:
        stored = tuple(spec for spec in self._stored.specs if spec != w.SPEC)
        return stored if self._transport == SAFETENSORS else (w.SPEC,)

    async def send(self, transfer: Transfer) -> int:
        fault = await self._faults.at("send", step=transfer.version)
        await spend(self._config.send_s)
        if transfer.transport == SAFETENSORS:
            return await send_tensors(transfer, lambda spec: _spoilt(self._stored.read(spec), fault))
        data = w.dump(w.initial() if fault == "wrong" else self._weights * np.nan if fault == "nan" else self._weights)
        target = Path(transfer.rendezvous, w.FILE)
        target.with_suffix(".part").write_bytes(data)
        target.with_suffix(".part").rename(target)
        return len(data)

    async def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        await self._faults.at("save")
        await spend(self._config.save_s)
        for file in self._checkpoint.iterdir():
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
        w.store(self._weights, folder)
        if what == "full":
            (folder / "trainer.json").write_text(json.dumps({"reference": w.sha256(self._reference)}))

    async def load(self, folder: Path) -> None:
        await self._faults.at("load")
        self._weights = w.restore(folder)

    async def weights_sha256(self) -> str:
        return w.sha256(self._weights)

    async def close(self) -> None:
        await asyncio.sleep(0)

    def _log_probabilities(self, batch: TrainBatch, weights: w.Weights) -> Floats:
        rows = [w.log_probabilities(batch.ids[start:end], weights)
                for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
        return np.concatenate(rows) if rows else np.zeros(0, np.float32)

    def _gradient(self, batch: TrainBatch) -> w.Weights:
        """Sum [K] over trained tokens, as a mean over the global batch; the skill's part is 0."""
        lengths = np.diff(batch.offsets)
        trained = batch.token_mask & (np.repeat(batch.sample_mask, lengths) > 0)
        advantage = np.repeat(batch.advantages.astype(np.float64), lengths)
        bucket = np.concatenate([w.buckets(batch.ids[start:end]) for start, end
                                 in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)])
        total = np.bincount(bucket[trained], (advantage + TRACE)[trained], minlength=w.SIZE)
        return total / batch.n_tokens


def _spoilt(data: bytes, fault: Spoilt) -> bytes:
    """Zeros for wrong tensors; in every float format, bytes of ones are NaN."""
    return data if fault is None else {"nan": b"\xff", "wrong": b"\0"}[fault] * len(data)


def create(context: PluginContext) -> MockTrainer:
    """The factory."""
    return MockTrainer(context)
