"""Whether a row's result depends on what is computed beside it.

Floating-point sums depend on their order, and matrix libraries choose an order by shape and processor. This package
keeps to shapes for which common libraries give every row the same bits whatever the batch; here that is tried.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .cache import Cache, Chunk, extend
from .config import Qwen3Config
from .model import Qwen3


def rows_are_independent(config: Qwen3Config) -> bool:
    """Try sequences alone and together, in several chunkings, in one layer of this shape; True if all bits agree."""
    config = replace(config, num_hidden_layers=1)
    generator = torch.Generator().manual_seed(0)
    model = Qwen3(config)
    model.initialize(generator)
    longest = config.max_position_embeddings
    lengths = [min(length, longest) for length in (3, 17, 61, 129, 131, 134, 190)]
    rows = [torch.randint(config.vocab_size, (length,), generator=generator).tolist() for length in lengths]
    together = _play(model, rows, [11, 1, 37, 1])
    for row, expected in zip(rows, together, strict=True):
        for sizes in ([len(row)], [max(1, len(row) - 5), *[1] * 5]):
            (alone,) = _play(model, [row], sizes)
            if not torch.equal(alone, expected):
                return False
    return True


def _play(model: Qwen3, rows: list[list[int]], sizes: list[int]) -> list[torch.Tensor]:
    """Logits of every token of every row, computed in chunks of the given sizes, over and over."""
    cache = Cache(model.config, len(rows), max(len(row) for row in rows))
    done, logits = [0] * len(rows), [[] for _ in rows]
    turn = 0
    while any(done[index] < len(row) for index, row in enumerate(rows)):
        chunks = [Chunk(index, done[index], row[done[index]:done[index] + sizes[(turn + index) % len(sizes)]])
                  for index, row in enumerate(rows) if done[index] < len(row)]
        for chunk, states in zip(chunks, extend(model, cache, chunks), strict=True):
            done[chunk.slot] = chunk.end
            logits[chunk.slot].append(model.logits(states))
        turn += 1
    return [torch.cat(parts) for parts in logits]
