"""The learning rate of a step."""

from __future__ import annotations

import math

from .config import TorchTrainerConfig


def learning_rate(config: TorchTrainerConfig, step: int) -> float:
    """For the optimizer's ``step``-th update, counted from 1."""
    peak = config.learning_rate
    if step <= config.warmup_steps:
        return peak * step / config.warmup_steps
    if config.schedule == "constant":
        return peak
    done = min(1.0, (step - config.warmup_steps) / (config.decay_steps - config.warmup_steps))
    left = 1.0 - done if config.schedule == "linear" else (1.0 + math.cos(math.pi * done)) / 2
    return config.min_learning_rate + (peak - config.min_learning_rate) * left
