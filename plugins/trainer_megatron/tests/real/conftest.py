"""A tiny sparse policy, batches for it, and trainers on it: Megatron's in processes of its own environment, and
trainer_torch's in this one, which says what is right."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from grpo_bench.contract import (
    Floats, LimitSettings, LossSettings, Placement, PluginContext, PolicyFacts, Purpose, SamplingSettings, TrainBatch,
    Trainer, UpdateStats,
)
from grpo_bench.engine.clock import RealClock
from grpo_bench.fabric import InlineFabric, LocalFabric
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config, save
from grpo_bench_trainer_megatron import MegatronTrainerConfig, controller as megatron
from grpo_bench_trainer_torch import TorchTrainerConfig, controller as plain

T = TypeVar("T")
Play = Callable[[Trainer], Awaitable[T]]
VOCABULARY = 61  # two tensor-parallel ranks do not divide it
TEMPERATURE = 0.8
LOSS = LossSettings(importance_correction=True)
STEPS, ROWS = 3, 11  # two data-parallel ranks do not divide the rows


@dataclass(frozen=True)
class Lesson:
    """What three updates did: log-probabilities before each and after the last, and the weights in the end."""

    log_probabilities: list[Floats]
    stats: list[UpdateStats]
    weights: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Bench:
    """Trainers of one policy."""

    checkpoint: Path
    folder: Path
    python: str
    temperature: float = TEMPERATURE

    def megatron(self, play: Play[T], *, checkpoint: Path | None = None, **options: Any) -> T:
        config = MegatronTrainerConfig.model_validate(
            {"learning_rate": 1e-3, "cache": str(self.folder / "cache"), "freeze_router": False, **options})

        async def inside() -> T:
            fabric = LocalFabric(self.folder / "run", RealClock(), logging.getLogger("test"))
            try:
                return await self._play(megatron.make, config, fabric, play, checkpoint)
            finally:
                await fabric.close()

        return asyncio.run(inside())

    def torch(self, play: Play[T], **options: Any) -> T:
        fabric = InlineFabric(RealClock(), logging.getLogger("test"), serialise=True)
        config = TorchTrainerConfig(workers=1, learning_rate=1e-3, **options)
        return asyncio.run(self._play(plain.make, config, fabric, play, None))

    async def _play(self, make: Any, config: Any, fabric: Any, play: Play[T], checkpoint: Path | None) -> T:
        sampling = SamplingSettings(temperature=TEMPERATURE).stamp(
            Purpose.TRAIN, stop_token_ids=(), max_context=128, seed=0)
        trainer: Trainer = make(PluginContext(
            config=config, fabric=fabric, placement=Placement(), run_folder=self.folder / "run",
            policy=PolicyFacts(checkpoint or self.checkpoint, 128, VOCABULARY), seed=0, deterministic=True,
            clock=RealClock(), logger=logging.getLogger("test"), interpreter=self.python,
            shared={"loss": LOSS, "limits": LimitSettings(), "sampling": {Purpose.TRAIN: sampling},
                    "transport": "safetensors"}))
        try:
            await trainer.start()
            return await play(trainer)
        finally:
            await trainer.close()

    async def lesson(self, trainer: Trainer) -> Lesson:
        seen, stats = [], []
        for step in range(STEPS):
            batch = make_batch(step)
            seen.append(await trainer.log_probabilities(batch, "current"))
            stats.append(await trainer.update(off_policy(batch, seen[-1])))
        seen.append(await trainer.log_probabilities(make_batch(STEPS), "current"))
        return Lesson(seen, stats, await self.weights(trainer))

    async def weights(self, trainer: Trainer) -> dict[str, torch.Tensor]:
        folder = self.folder / f"weights-{len(list(self.folder.glob('weights-*')))}"
        folder.mkdir()
        await trainer.save(folder, "weights")
        return load_file(folder / "model.safetensors")

    def batches(self, seed: int, rows: int = ROWS) -> TrainBatch:
        return make_batch(seed, rows)

    def off_policy(self, batch: TrainBatch, current: Floats) -> TrainBatch:
        return off_policy(batch, current)


def make_batch(seed: int, rows: int = ROWS) -> TrainBatch:
    """Rows in groups of four that begin alike, each with two sampled spans; some are masked."""
    random = np.random.default_rng(seed)
    parts, mask, prompt = [], [], np.zeros(0, np.int64)
    for row in range(rows):
        if row % 4 == 0:
            prompt = random.integers(0, VOCABULARY, random.integers(15, 30))
        tail = random.integers(0, VOCABULARY, random.integers(12, 30))
        parts.append(np.concatenate((prompt, tail)).astype(np.int32))
        mask.append(np.concatenate((np.zeros(len(prompt), bool), np.ones(5, bool), np.zeros(4, bool),
                                    np.ones(len(tail) - 9, bool))))
    offsets, token_mask = np.cumsum([0, *map(len, parts)]), np.concatenate(mask)
    sample_mask = (random.random(rows) < 0.8).astype(np.float32)
    kept = np.repeat(sample_mask, np.diff(offsets))
    return TrainBatch(
        step=1, ids=np.concatenate(parts), offsets=offsets, rollout=np.arange(rows, dtype=np.int32),
        token_mask=token_mask, gen_log_probabilities=np.zeros(len(token_mask), np.float32), sample_mask=sample_mask,
        advantages=random.normal(0, 1, rows).astype(np.float32),
        rewards=(random.random(rows) < 0.5).astype(np.float32), prev_log_probabilities=None,
        n_tokens=float((kept * token_mask).sum()), n_sequences=float(sample_mask.sum()))


def off_policy(batch: TrainBatch, current: Floats) -> TrainBatch:
    """As an older policy sampled it, so that some ratios are clipped; the same noise whoever computed ``current``."""
    random = np.random.default_rng(batch.rows)
    prev, noise = current + random.normal(0, 0.15, len(current)), random.normal(0, 0.05, len(current))
    return replace(batch, prev_log_probabilities=np.where(batch.token_mask, prev, 0).astype(np.float32),
                   gen_log_probabilities=np.where(batch.token_mask, prev + noise, 0).astype(np.float32))


@pytest.fixture(scope="session")
def sparse_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    model = Qwen3(Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, num_experts=4, moe_intermediate_size=32, max_position_embeddings=128, initializer_range=0.15,
        tie_word_embeddings=False))
    model.initialize(torch.Generator().manual_seed(1))
    folder = tmp_path_factory.mktemp("policy")
    save(model, folder, "float32")
    (folder / "tokenizer.json").write_text(json.dumps({}))
    return folder


@pytest.fixture(scope="session")
def bench(sparse_policy: Path, tmp_path_factory: pytest.TempPathFactory,
          environment_python: Callable[[str], str]) -> Bench:
    return Bench(sparse_policy, tmp_path_factory.mktemp("bench"), str(environment_python("megatron")))


@pytest.fixture(scope="session")
def expected(bench: Bench) -> Lesson:
    """What trainer_torch makes of the lesson."""
    return bench.torch(bench.lesson)
