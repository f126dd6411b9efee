"""The trainer as the engine sees it: a group of ranks that hold one policy together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from grpo_bench.contract import (
    BatchError, Floats, GroupSpec, LimitSettings, LossSettings, PluginContext, PluginError, Purpose, Sampling,
    TensorSpec, TrainBatch, Transfer, UpdateStats, WorkerGroup,
)

from .config import MegatronTrainerConfig

_TARGET = "grpo_bench_trainer_megatron.worker:make"


class MegatronTrainer:
    """A Trainer over a group of worker ranks."""

    def __init__(self, context: PluginContext) -> None:
        self._context = context
        self._config: MegatronTrainerConfig = context.config
        self._started: WorkerGroup | None = None
        self._tensors: tuple[TensorSpec, ...] = ()

    async def start(self) -> None:
        context = self._context
        loss: LossSettings = context.shared["loss"]
        limits: LimitSettings = context.shared["limits"]
        sampling: Mapping[Purpose, Sampling] = context.shared["sampling"]
        plain = {"plugin": self._config.model_dump(mode="json"), "loss": loss.model_dump(),
                 "threads": context.placement.threads, "checkpoint": str(context.policy.checkpoint),
                 "temperature": sampling[Purpose.TRAIN].temperature,
                 "local": local_numbers(context.placement.nodes, self._config.workers)}
        placement = replace(context.placement, workers=self._config.workers)
        self._started = await context.fabric.start_group(GroupSpec(
            name="trainer", target=_TARGET, config=plain, placement=placement, interpreter=context.interpreter,
            start_deadline_s=limits.start_s))
        address = await self._started.call(0, "listen", deadline_s=limits.start_s)
        self._tensors, *_ = await self._started.call_all("join", address, deadline_s=limits.start_s)

    @property
    def _ranks(self) -> WorkerGroup:
        if self._started is None:
            raise PluginError("the trainer has not been started")
        return self._started

    async def log_probabilities(self, batch: TrainBatch, weights: Literal["current", "reference"]) -> Floats:
        """Only where ``token_mask`` is set; 0 elsewhere."""
        result = np.zeros(len(batch.ids), np.float32)
        await self._ranks.call(0, "hold", batch)
        for at, values in await self._ranks.call_all("log_probabilities", weights):
            result[at] = values
        return result

    async def update(self, batch: TrainBatch) -> UpdateStats:
        if batch.n_tokens == 0:
            raise BatchError("no token of this batch trains, so there is nothing to learn from",
                             hint="all rows are masked; see the masks in the run's events")
        await self._ranks.call(0, "hold", batch)
        ended = await self._ranks.call_all("update")
        metrics = dict(ended[0]["metrics"])
        return UpdateStats(loss=metrics.pop("loss"), grad_norm=ended[0]["grad_norm"],
                           learning_rate=ended[0]["learning_rate"], tokens=len(batch.ids),
                           ended_at=max(rank["ended_at"] for rank in ended), metrics=metrics)

    def tensors(self) -> tuple[TensorSpec, ...]:
        return self._tensors

    async def send(self, transfer: Transfer) -> int:
        first, *_ = await self._ranks.call_all("send", transfer, deadline_s=transfer.deadline_s)
        return first

    async def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        await self._ranks.call_all("save", folder, what)

    async def load(self, folder: Path) -> None:
        await self._ranks.call_all("load", folder)

    async def weights_sha256(self) -> str:
        """PluginError where ranks have come apart."""
        first, *others = await self._ranks.call_all("weights_sha256")
        if any(other != first for other in others):
            raise PluginError("the trainer's ranks no longer hold the same weights")
        return first

    async def close(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            await started.close()


def local_numbers(nodes: Sequence[str], ranks: int) -> tuple[int, ...]:
    """Of each rank, how many of lower number are on its host. ``nodes`` are the hosts of all, empty where it is one."""
    seen: Counter[str] = Counter()
    found = []
    for node in nodes or [""] * ranks:
        found.append(seen[node])
        seen[node] += 1
    return tuple(found)


def make(context: PluginContext) -> MegatronTrainer:
    """The descriptor's factory."""
    return MegatronTrainer(context)
