"""A small policy with random weights, and the sampling profiles of the tests."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from grpo_bench.contract import Purpose, Sampling
from grpo_bench_model_qwen3 import Qwen3, Qwen3Config


@pytest.fixture(scope="session", params=[0, 4], ids=["dense", "moe"])
def model(request) -> Qwen3:
    torch.set_num_threads(1)
    config = Qwen3Config(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=1, head_dim=16, intermediate_size=96, num_experts=request.param,
                         moe_intermediate_size=48, max_position_embeddings=256, initializer_range=0.3)
    model = Qwen3(config)
    model.initialize(torch.Generator().manual_seed(3))
    return model


@pytest.fixture(scope="session")
def prompts() -> list[np.ndarray]:
    """Two groups of four equal prompts, and one prompt of its own."""
    rng = np.random.default_rng(0)
    unique = [rng.integers(10, 97, length).astype(np.int32) for length in (40, 23, 150)]
    return [unique[0]] * 4 + [unique[1]] * 4 + [unique[2]]


@pytest.fixture(scope="session")
def sampling() -> Sampling:
    return Sampling(purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0,
                    presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(7,), max_tokens=24, max_context=200,
                    seed=5)
