"""The policy's weights [K] in float64, what they say about tokens, and their file form.

The first weight is the skill, which decides how often replies are right; the others decide log-probabilities. On their
way to a generator they are nothing but the numbers, little-endian; in a checkpoint they are a tensor of their own,
beside those of the policy, which never change. Weights of another kind stand for themselves by their hash: they have
the skill of the untrained policy, and log-probabilities that change with every bit of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import TensorSpec
from grpo_bench.contract.values import Floats, Ids

Weights = npt.NDArray[np.float64]
SIZE = 64
NAME = "weights"
FILE = "mock-weights.bin"
SPEC = TensorSpec(NAME, (SIZE,), "float64")
STORED = "mock-weights.safetensors"
"""Its file in a checkpoint."""


def initial() -> Weights:
    """The weights of the untrained policy."""
    weights = np.linspace(0.0, 1.0, SIZE)
    weights[0] = 0.0
    return weights


def of_digest(digest: bytes) -> Weights:
    """What stands for weights of another kind, given their hash."""
    weights = np.random.default_rng(int.from_bytes(digest, "little")).random(SIZE)
    weights[0] = 0.0
    return weights


def buckets(ids: Ids) -> npt.NDArray[np.int64]:
    """Which weight [T] each token's log-probability depends on, given the token before it."""
    current = ids.astype(np.int64)
    previous = np.concatenate([[0], current[:-1]])
    return 1 + (current * 31 + previous * 17) % (SIZE - 1)


def log_probabilities(ids: Ids, weights: Weights) -> Floats:
    """Of each token of one sequence [T], 0 for the first."""
    with np.errstate(invalid="ignore"):  # spoilt weights give NaN, quietly
        result = -np.logaddexp(0.0, -weights[buckets(ids)])
    result[:1] = 0.0
    return result.astype(np.float32)


def dump(weights: Weights) -> bytes:
    return weights.astype("<f8").tobytes()


def load(data: bytes) -> Weights:
    return np.frombuffer(data, "<f8", SIZE).copy()


def read(path: Path) -> Weights:
    return load(path.read_bytes())


def store(weights: Weights, folder: Path) -> None:
    """Write the checkpoint's tensor."""
    from safetensors.numpy import save_file

    save_file({NAME: weights}, folder / STORED)


def restore(folder: Path) -> Weights:
    from safetensors.numpy import load_file

    return load_file(folder / STORED)[NAME]


def sha256(weights: Weights) -> str:
    return hashlib.sha256(NAME.encode() + dump(weights)).hexdigest()
