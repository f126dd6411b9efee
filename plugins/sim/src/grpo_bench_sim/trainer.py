"""The trainer: updates, passes of log-probabilities, refits and checkpoints that take modelled times."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Literal

import numpy as np

from grpo_bench.contract import Floats, PluginContext, TensorSpec, TrainBatch, Transfer, UpdateStats

from .config import PartConfig
from .model import Quantity

_TENSOR = TensorSpec("version", (1,), "float32")


class ModelledTrainer:
    """The contract's Trainer. Its weights are the number of updates."""

    def __init__(self, context: PluginContext) -> None:
        self._config: PartConfig = context.config
        self._clock = context.clock
        self._version = 0
        self._first_asked = True
        self._driver_due = True

    async def start(self) -> None:
        await self._take(Quantity.START, self._config.model.start.draw(self._config.stream("start")))

    async def log_probabilities(self, batch: TrainBatch, weights: Literal["current", "reference"]) -> Floats:
        model = self._config.model
        seconds = model.log_probabilities.draw(self._stream("log_probabilities"), batch.rows, batch.n_tokens)
        await self._take(Quantity.LOG_PROBABILITIES, seconds / self._config.speed)
        await self._drive(batch)
        if self._first_asked:
            self._first_asked = False
            await self._take(Quantity.FIRST_STEP, model.first.log_probabilities)
        return np.zeros(len(batch.ids), np.float32)

    async def update(self, batch: TrainBatch) -> UpdateStats:
        model = self._config.model
        seconds = model.update.draw(self._stream("update"), batch.rows, batch.n_tokens)
        await self._drive(batch)
        await self._take(Quantity.UPDATE, seconds / self._config.speed)
        if not self._version:
            await self._take(Quantity.FIRST_STEP, model.first.update)
        self._version += 1
        self._driver_due = True
        return UpdateStats(loss=0.0, grad_norm=0.0, learning_rate=0.0, tokens=len(batch.ids),
                           ended_at=self._clock.now_utc())

    def tensors(self) -> tuple[TensorSpec, ...]:
        return (_TENSOR,)

    async def send(self, transfer: Transfer) -> int:
        if not self._version and not transfer.version:
            await self._take(Quantity.FIRST_STEP, self._config.model.first.rollout)
        await self._take(Quantity.REFIT, self._config.model.refit.draw(self._stream("refit", transfer.version)))
        return int(self._config.model.assumptions.weights_bytes)

    async def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        model, assumed = self._config.model, self._config.model.assumptions
        size = assumed.full_bytes if what == "full" else assumed.weights_bytes
        law = model.checkpoint if what == "full" else model.checkpoint_weights or model.checkpoint
        await self._take(Quantity.CHECKPOINT,
                         law.draw(self._stream("checkpoint", what)) if law else size / assumed.bytes_per_s)
        data = np.array([self._version], np.float32).tobytes()
        head = json.dumps({_TENSOR.name: {"dtype": "F32", "shape": [1], "data_offsets": [0, len(data)]}}).encode()
        (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)

    async def load(self, folder: Path) -> None:
        raise RuntimeError("a simulated run is not resumed")

    async def weights_sha256(self) -> str:
        return hashlib.sha256(str(self._version).encode()).hexdigest()

    async def close(self) -> None:
        await self._take(Quantity.SHUTDOWN, self._config.model.shutdown.draw(self._config.stream("shutdown")))

    async def _drive(self, batch: TrainBatch) -> None:
        """What the driver itself does in a step, with the first that the step asks of its trainer."""
        if self._driver_due:
            self._driver_due = False
            seconds = self._config.model.driver.draw(self._stream("driver"), batch.rows, batch.n_tokens)
            await self._take(Quantity.DRIVER, seconds)

    def _stream(self, *names: object):
        return self._config.stream(*names, self._version)

    async def _take(self, quantity: Quantity, seconds: float) -> None:
        await asyncio.sleep(seconds * self._config.scale(quantity))


def create(context: PluginContext) -> ModelledTrainer:
    """The factory."""
    return ModelledTrainer(context)
