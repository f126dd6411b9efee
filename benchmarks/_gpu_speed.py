"""Tokens a second of the trainer's update (forward, loss, gradient, optimizer), packed, beside the same rows padded.

Rows differ in length, on average half the longest, and come in groups that begin alike. Padding makes all as long as
the longest; only the rows' own tokens count. Everything is timed in rounds that alternate. The trainer computes in
float32; on a GPU also with TF32 products.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from grpo_bench.contract import TrainBatch
from grpo_bench_model_qwen3 import Qwen3Config
from grpo_bench_trainer_torch.worker import TrainerWorker

from ._gpu_errors import matrix_precision
from ._gpu_trainer import make_batch, make_checkpoint, make_worker

_MODELS = {
    "cuda": Qwen3Config(vocab_size=32_000, hidden_size=1024, num_hidden_layers=8, num_attention_heads=16,
                        num_key_value_heads=4, head_dim=64, num_experts=16, num_experts_per_tok=2,
                        moe_intermediate_size=768, max_position_embeddings=4096),
    "cpu": Qwen3Config(vocab_size=997, num_experts=4, num_hidden_layers=2),
}
_ROWS = {"cuda": (4, 32), "cpu": (4, 16)}
_MEAN = {"cuda": 1024, "cpu": 64}
"""Tokens of a row."""
_ROUNDS = {"cuda": 5, "cpu": 2}


@dataclass(frozen=True, slots=True)
class Speed:
    """``seconds`` of an update of ``tokens`` tokens (median, least, most) and GiB of the device's memory at most; None
    where memory did not suffice. ``times``: how many times as fast a token is as in what ``beside`` names."""

    what: str
    tokens: int
    seconds: tuple[float, float, float] | None
    memory_gib: float | None
    times: float | None
    beside: str

    @property
    def fine(self) -> bool:
        """What is fast enough is not for this check to say."""
        return True

    @property
    def rate(self) -> str:
        return "out of memory" if self.seconds is None else f"{self.tokens / self.seconds[0]:,.0f}"

    @property
    def ratio(self) -> str:
        return "-" if self.times is None else f"{self.times:.2f}"

    def __str__(self) -> str:
        return f"{self.what:<42}{self.tokens:>7,} tokens{self.rate:>14} tokens/s{self.ratio:>8} x {self.beside}"

    @staticmethod
    def header() -> tuple[str, str]:
        names = ("update", "tokens", "tokens/s", "seconds", "memory, GiB", "times as fast", "as")
        return f"| {' | '.join(names)} |", "|---" * len(names) + "|"

    def row(self) -> str:
        seconds = "-" if self.seconds is None else "{:.3g} [{:.3g}, {:.3g}]".format(*self.seconds)
        memory = "-" if self.memory_gib is None else f"{self.memory_gib:.1f}"
        cells = (self.what, f"{self.tokens:,}", self.rate, seconds, memory, self.ratio, self.beside)
        return f"| {' | '.join(cells)} |"


@dataclass(slots=True)
class _Variant:
    """A way to compute an update; ``seconds`` of each round, none where memory does not suffice."""

    worker: TrainerWorker
    batch: TrainBatch
    precision: str = "float32"
    seconds: list[float] = field(default_factory=list)
    memory_gib: float | None = None

    @property
    def median(self) -> float | None:
        return median(self.seconds) if self.seconds else None


def speeds(device: str, scratch: Path) -> Iterator[Speed]:
    config = _MODELS[device]
    checkpoint = make_checkpoint(config, scratch / "speed")
    plain = make_worker(checkpoint, device, scratch, share_prefixes=False)
    sharing = make_worker(checkpoint, device, scratch, share_prefixes=True)
    packed: dict[int, float | None] = {}
    for rows in _ROWS[device]:
        batch = make_batch(rows, _MEAN[device], config.vocab_size)
        tokens = len(batch.ids)
        variants = {"padded": _Variant(plain, padded(batch)), "packed": _Variant(plain, batch),
                    "packed, common beginnings once": _Variant(sharing, batch)}
        if device == "cuda":
            variants["packed, TF32 products"] = _Variant(plain, batch, "tf32")
        _time(variants, device)
        for name, variant in variants.items():
            yield _speed(name, tokens, variant, variants["padded"].median, tokens, f"padded, {tokens:,} tokens")
        packed[tokens] = variants["packed"].median
        least = min(packed)
        if tokens != least:
            yield _speed("packed", tokens, variants["packed"], packed[least], least, f"packed, {least:,} tokens")


def padded(batch: TrainBatch) -> TrainBatch:
    """The same rows, all as long as the longest; log-probabilities of before are those of generation."""
    lengths = np.diff(batch.offsets)
    wide, real = int(lengths.max()), np.arange(lengths.max()) < lengths[:, None]

    def spread(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        result = np.zeros(real.shape, values.dtype)
        result[real] = values
        return result.ravel()

    return replace(
        batch, ids=spread(batch.ids), offsets=np.arange(batch.rows + 1) * wide, token_mask=spread(batch.token_mask),
        gen_log_probabilities=spread(batch.gen_log_probabilities),
        prev_log_probabilities=spread(batch.gen_log_probabilities))


def _time(variants: Mapping[str, _Variant], device: str) -> None:
    """One round to warm up and to see what fits, then those that count."""
    for number in range(_ROUNDS[device] + 1):
        for variant in variants.values():
            if number and not variant.seconds:
                continue
            try:
                taken = _update(variant, device)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                continue
            if number == 1:
                variant.seconds.clear()
            variant.seconds.append(taken)


def _update(variant: _Variant, device: str) -> float:
    cuda = device == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    with matrix_precision(variant.precision):
        variant.worker.apply([asyncio.run(variant.worker.accumulate(variant.batch))])
    if cuda:
        torch.cuda.synchronize()
        variant.memory_gib = torch.cuda.max_memory_allocated() / 2**30
    return time.perf_counter() - started


def _speed(name: str, tokens: int, variant: _Variant, beside: float | None, beside_tokens: int, as_what: str) -> Speed:
    taken = variant.median
    seconds = None if taken is None else (taken, min(variant.seconds), max(variant.seconds))
    times = None if taken is None or beside is None else beside / beside_tokens * tokens / taken
    return Speed(name, tokens, seconds, variant.memory_gib, times, as_what)
