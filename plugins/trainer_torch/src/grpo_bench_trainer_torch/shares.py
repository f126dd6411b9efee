"""How a batch is cut into micro-batches, and which rank computes which.

Rows are put in lexicographic order, so that those with a common beginning stand together, and cut where the tokens to
compute reach the limit. The parts go to ranks, the largest first, each to the rank with the least so far. Every rank
derives the same cut from the same batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from grpo_bench.contract import TrainBatch


@dataclass(frozen=True, slots=True)
class Part:
    """A micro-batch: ``rows`` of the batch, and the batch's flat ``tokens`` [n] of these rows, row after row."""

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    cost: int


def share(batch: TrainBatch, *, rank: int, ranks: int, batch_tokens: int, share_prefixes: bool) -> list[Part]:
    """The parts of ``rank``, in the order they are to be computed."""
    parts = cut(batch, batch_tokens, share_prefixes)
    loads, mine = [0] * ranks, []
    for part in sorted(parts, key=lambda part: -part.cost):
        least = loads.index(min(loads))
        loads[least] += part.cost
        if least == rank:
            mine.append(part)
    return mine


def cut(batch: TrainBatch, batch_tokens: int, share_prefixes: bool) -> list[Part]:
    """All parts of a batch."""
    rows = [batch.ids[a:b] for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]
    if share_prefixes:
        order = sorted(range(len(rows)), key=lambda row: rows[row].tolist())
    else:
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    parts, chosen, cost = [], [], 0
    for row in order:
        length = len(rows[row])
        new = length - (_common(rows[chosen[-1]], rows[row]) if share_prefixes and chosen else 0)
        if chosen and cost + new > batch_tokens:
            parts.append(_part(batch, chosen, cost))
            chosen, cost, new = [], 0, length
        chosen.append(row)
        cost += new
    if chosen:
        parts.append(_part(batch, chosen, cost))
    return parts


def _part(batch: TrainBatch, chosen: list[int], cost: int) -> Part:
    rows = np.array(chosen, np.int64)
    starts, lengths = batch.offsets[rows], np.diff(batch.offsets)[rows]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
    return Part(rows, tokens, offsets, cost)


def _common(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
