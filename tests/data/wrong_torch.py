"""A trainer and a generator that compute, and do right but for the one thing that their option ``wrong`` names. Of a
trainer whose ``wrong`` begins with ``quiet_`` only the gradient is wrong: the loss that it tells is right."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import grpo_bench_gen_torch
import grpo_bench_trainer_torch
import numpy as np
import torch
from grpo_bench_gen_torch import engine as sampling_engine
from grpo_bench_gen_torch.controller import TorchGenerator
from grpo_bench_gen_torch.worker import EngineWorker
from grpo_bench_model_qwen3 import hf_views, load
from grpo_bench_trainer_torch.controller import TorchTrainer
from grpo_bench_trainer_torch.worker import TrainerWorker

from grpo_bench.contract import LossSettings, TensorSpec, TrainBatch, WorkerContext
from grpo_bench.steps.transport import receive_tensors, send_tensors


class Retargeted:
    """A fabric that starts other workers than it is told to."""

    def __init__(self, fabric: Any, target: str) -> None:
        self._fabric, self._target = fabric, f"{__name__}:{target}"

    async def start_group(self, spec: Any) -> Any:
        return await self._fabric.start_group(replace(spec, target=self._target))


class TrainerConfig(grpo_bench_trainer_torch.TorchTrainerConfig):
    wrong: str = ""


class WrongWorker(TrainerWorker):
    def __init__(self, context: WorkerContext) -> None:
        config = dict(context.config)
        plugin = dict(config["plugin"])
        self._wrong: str = plugin.pop("wrong")
        if self._wrong == "cold":
            config["temperature"] = 1.0
        super().__init__(replace(context, config={**config, "plugin": plugin}))

    async def accumulate(self, batch: TrainBatch) -> dict[str, float]:
        right = await super().accumulate(batch)
        if not self._wrong:
            return right
        loss, wrong = self._loss, self._wrong.removeprefix("quiet_")
        self._loss = LossSettings() if wrong == "defaults" else loss
        spoilt = await super().accumulate(_spoilt(batch, wrong))
        self._loss = loss
        return right if self._wrong.startswith("quiet_") else spoilt

    def tensors(self) -> tuple[TensorSpec, ...]:
        specs = super().tensors()
        return tuple(replace(spec, dtype="float16") for spec in specs) if self._wrong == "zeros" else specs

    async def send(self, transfer: Any) -> int:
        if self._wrong == "zeros":
            return await send_tensors(transfer, lambda spec: np.zeros(spec.shape, np.float16))
        if self._wrong == "sends_base":
            views = hf_views(load(self._checkpoint))
            return await send_tensors(transfer, lambda spec: views[spec.name].contiguous().numpy())
        return await super().send(transfer)


def _spoilt(batch: TrainBatch, wrong: str) -> TrainBatch:
    starts = np.isin(np.arange(len(batch.ids)), batch.offsets)
    prev = batch.prev_log_probabilities
    assert prev is not None
    changes: Mapping[str, Mapping[str, Any]] = {
        "neighbours": {"token_mask": np.roll(batch.token_mask, -1) & ~starts},
        "prompts": {"token_mask": ~starts},
        "half": {"sample_mask": batch.sample_mask * (np.arange(batch.rows) % 2 == 0)},
        "signs": {"advantages": np.sign(batch.advantages)},
        "uphill": {"advantages": -batch.advantages},
        "no_gen": {"gen_log_probabilities": prev},
        "no_prev": {"prev_log_probabilities": batch.gen_log_probabilities},
        "own_counts": {"n_tokens": float(batch.token_mask.sum())},
    }
    return replace(batch, **changes.get(wrong, {}))


trainer = replace(grpo_bench_trainer_torch.plugin, name="wrong", config=TrainerConfig, describe=None,
                  factory=f"{__name__}:make_trainer")


def make_trainer(context: Any) -> TorchTrainer:
    return TorchTrainer(replace(context, fabric=Retargeted(context.fabric, "WrongWorker")))


class GeneratorConfig(grpo_bench_gen_torch.TorchGeneratorConfig):
    wrong: str = ""


class WrongGenerator(TorchGenerator):
    async def receive(self, transfer: Any) -> None:
        if self._config.wrong != "first_engine" or transfer.version == 0:
            return await super().receive(transfer)
        engines = range(1, self._engines.size)
        await asyncio.gather(self._engines.call(0, "receive", transfer), *(_taken(transfer, rank) for rank in engines))

    async def probe(self, sequences: Any) -> Any:
        return await self._engines.call(0, "probe", list(sequences))


async def _taken(transfer: Any, receiver: int) -> None:
    """Take all weights and do nothing with them."""
    async for _ in receive_tensors(transfer, receiver):
        pass


class WrongEngine(sampling_engine.Engine):
    wrong = ""

    def add(self, request_id: str, prompt: Any, sampling: Any, stream: str, affinity: str, finished: Any) -> None:
        if self.wrong == "warm":
            sampling = replace(sampling, temperature=1.0)
        if self.wrong == "whole":
            sampling = replace(sampling, top_p=1.0, top_k=-1)
        if self.wrong == "seedless":
            sampling = replace(sampling, seed=0)
        if self.wrong == "turnless":
            stream = stream.rpartition("/")[0]
        super().add(request_id, prompt, sampling, stream, affinity, finished)

    def forget(self) -> None:
        if self.wrong != "stale" or not self.running:
            super().forget()

    def _draw(self, requests: Any, states: torch.Tensor) -> None:
        uniforms, draw = sampling_engine.uniforms, sampling_engine.draw
        if self.wrong == "biased":
            with patch.object(sampling_engine, "uniforms", lambda *at: 0.3 * uniforms(*at)):
                return super()._draw(requests, states)
        if self.wrong == "raw":
            def raw(logits: torch.Tensor, sampling: Any, uniform: Any) -> tuple[list[int], list[float]]:
                tokens, _ = draw(logits, sampling, uniform)
                return tokens, logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).flatten().tolist()

            with patch.object(sampling_engine, "draw", raw):
                return super()._draw(requests, states)
        return super()._draw(requests, states)


class WrongEngineWorker(EngineWorker):
    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        self._wrong: str = context.config["wrong"]
        self._engine.__class__ = WrongEngine
        self._engine.wrong = self._wrong  # type: ignore[attr-defined]

    def abort(self, request_id: str) -> None:
        if self._wrong != "goes_on":
            super().abort(request_id)


generator = replace(grpo_bench_gen_torch.plugin, name="wrong", config=GeneratorConfig,
                    factory=f"{__name__}:make_generator")


def make_generator(context: Any) -> WrongGenerator:
    return WrongGenerator(replace(context, fabric=Retargeted(context.fabric, "WrongEngineWorker")))
