"""One rank of the trainer.

A group of ranks exists once all have joined: rank 0 opens a store (``listen``), then every rank is called with its
address (``join``), and from then on every call is made to all ranks at once, since all compute together. Batches come
to rank 0 (``hold``), which hands them on. What a rank computes, it computes in one thread of its own, so that its
event loop stays free.

Megatron is imported when ranks join, after the CPU was made ready to take a GPU's place where there is none.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from grpo_bench.contract import Floats, LossSettings, PluginError, TensorSpec, TrainBatch, Transfer, WorkerContext
from grpo_bench.contract.codec import pack, unpack

from . import cpu
from .batches import Indices
from .config import MegatronTrainerConfig

_Result = TypeVar("_Result")


class TrainerWorker:
    """This rank's part of the weights and of the optimizer, and its share of every batch."""

    def __init__(self, context: WorkerContext) -> None:
        config = context.config
        self._threads: int = config["threads"]
        self._config = MegatronTrainerConfig.model_validate(config["plugin"])
        self._loss = LossSettings.model_validate(config["loss"])
        self._temperature: float = config["temperature"]
        self._checkpoint = Path(config["checkpoint"])
        self._rank, self._ranks, self._clock = context.rank, context.size, context.clock
        self._host, self._local = context.host, config["local"][context.rank]
        self._thread = ThreadPoolExecutor(1, "compute")
        self._joined = False
        self._held: TrainBatch | None = None
        self._store: Any = None
        self._reference: Any = None

    async def listen(self) -> str:
        """Of rank 0: where the others find it."""
        from . import ranks

        self._store, address = await self._compute(
            lambda: ranks.open_store(self._ranks, self._host, self._config.collective_s))
        return address

    async def join(self, address: str) -> tuple[TensorSpec, ...]:
        """Meet the others and make the policy; returns its tensors."""
        return await self._compute(lambda: self._join(address))

    def hold(self, batch: TrainBatch) -> None:
        """Of rank 0: the batch that the next call is about."""
        self._held = batch

    async def log_probabilities(self, weights: Literal["current", "reference"]) -> tuple[Indices, Floats]:
        """Flat indices [m] of the sampled tokens that this rank reports, and their log-probabilities [m]."""
        def compute() -> tuple[Indices, Floats]:
            policy = self._policy if weights == "current" else self._reference_policy()
            return self._computation.log_probabilities(policy, self._batch())

        return await self._compute(compute)

    async def update(self) -> Mapping[str, Any]:
        """One step of the optimizer; the same answer from every rank, each with the time it ended."""
        done = await self._compute(lambda: self._computation.update(self._policy, self._batch()))
        return {**done, "ended_at": self._clock.now_utc()}

    async def send(self, transfer: Transfer) -> int:
        """The bytes sent, from rank 0; 0 from others."""
        given_up = threading.Event()
        try:
            return await self._compute(lambda: self._exporter.send(transfer, given_up))
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def save(self, folder: Path, what: Literal["full", "weights"]) -> None:
        from . import checkpoints

        await self._compute(lambda: checkpoints.save(self._policy, self._exporter, folder, what))

    async def load(self, folder: Path) -> None:
        from . import checkpoints

        await self._compute(lambda: checkpoints.load(self._policy, folder))

    async def weights_sha256(self) -> str:
        return await self._compute(lambda: self._exporter.sha256())

    async def close(self) -> None:
        if self._joined:
            from . import ranks

            await self._compute(ranks.leave)
        self._thread.shutdown(wait=False)

    def _join(self, address: str) -> tuple[TensorSpec, ...]:
        torch.set_num_threads(self._threads)
        logging.getLogger("megatron").setLevel(logging.WARNING)  # else it lists every weight
        cpu.install()
        from . import policy, ranks, sending, update
        from .fields import Features

        meeting = ranks.Meeting(address, self._host, self._local)
        self._place = ranks.join(self._config, meeting, self._rank, self._ranks, self._store)
        self._joined = True
        self._features = Features.here()
        self._policy = policy.trained(self._config, self._features, self._checkpoint, self._fill)
        self._computation = update.Computation(self._config, self._loss, self._temperature, self._place)
        self._exporter = sending.Exporter(self._policy, self._checkpoint, self._host)
        return self._exporter.specs

    def _batch(self) -> TrainBatch:
        from . import ranks

        held, self._held = self._held, None
        if self._rank == 0 and held is None:
            raise PluginError("rank 0 was given no batch")
        return unpack(ranks.from_first(self._place, pack(held) if held is not None else b""))

    def _reference_policy(self) -> Any:
        from . import policy

        if self._reference is None:
            self._reference = policy.reference(self._config, self._features, self._checkpoint, self._fill)
        return self._reference

    def _fill(self, bridge: Any, chunks: list[Any]) -> None:
        from . import cache

        cache.load(bridge, chunks, self._checkpoint, self._config.cache, self._config.precision)

    async def _compute(self, work: Callable[[], _Result]) -> _Result:
        """Work that has begun ends, also where nobody waits for it any more: the other ranks are in it as well."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, work))


def make(context: WorkerContext) -> TrainerWorker:
    """The group's target."""
    return TrainerWorker(context)
