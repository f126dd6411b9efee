"""The training forward: ragged rows, every distinct prefix computed once.

Rows of one batch often begin alike (rollouts of one prompt). Hidden states depend on the tokens before only, so rows
are laid out as a trie: a *node* is one token after one prefix, computed once for all rows that share it. A row's tokens
map to nodes, its *new* nodes are those no row before it (in lexicographic order) has. Attention of a row's new nodes
reads the keys along the row's whole path, and nothing else, so rows cannot leak into each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import kernels
from .model import Qwen3


_TILE_SCORES = 1 << 15
"""Scores of one head that a tile may hold; tiles that fit the processor's cache are fastest."""


@dataclass(frozen=True)
class Tile:
    """Rows whose attention is computed together, padded: ``queries`` [B, Tq] and ``keys`` [B, Tk] are node indices,
    ``bias`` [B, Tq, Tk] is 0 where a query sees a key and -inf elsewhere."""

    queries: Tensor
    keys: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Packed:
    """A batch ready for :func:`hidden_states`. ids and positions [n] of the nodes; ``node`` [N] maps every token of the
    flat batch to its node; ``scatter`` [n] finds each node's place among all tiles' padded queries."""

    ids: Tensor
    positions: Tensor
    node: npt.NDArray[np.int64]
    tiles: tuple[Tile, ...]
    scatter: Tensor


def pack(ids: npt.NDArray[np.integer], offsets: npt.NDArray[np.integer], *, share_prefixes: bool = True,
         device: torch.device | str = "cpu") -> Packed:
    """Lay out flat ids [N] with row r in ``offsets[r]:offsets[r + 1]``, for a model on ``device``."""
    rows = [np.asarray(ids[a:b], np.int64) for a, b in pairwise(offsets)]
    order = sorted(range(len(rows)), key=lambda r: rows[r].tolist()) if share_prefixes else list(range(len(rows)))
    paths: list[npt.NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(rows)
    shared = [0] * len(rows)
    count, before = 0, None
    for r in order:
        row = rows[r]
        common = _common(rows[before], row) if share_prefixes and before is not None else 0
        new = np.arange(count, count + len(row) - common)
        paths[r] = new if before is None else np.concatenate((paths[before][:common], new))
        shared[r], count, before = common, count + len(new), r
    node = np.concatenate(paths) if paths else np.zeros(0, np.int64)
    flat_ids, positions = np.empty(count, np.int64), np.empty(count, np.int64)
    for row, path in zip(rows, paths, strict=True):
        flat_ids[path], positions[path] = row, np.arange(len(row))
    tiles, scatter = _tiles(paths, shared, count, device)
    return Packed(torch.from_numpy(flat_ids).to(device), torch.from_numpy(positions).to(device), node, tiles,
                  torch.from_numpy(scatter).to(device))


def _common(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _tiles(paths: list[npt.NDArray[np.int64]], shared: list[int], count: int,
           device: torch.device | str) -> tuple[tuple[Tile, ...], npt.NDArray[np.int64]]:
    new = [len(path) - common for path, common in zip(paths, shared, strict=True)]
    order = sorted((r for r in range(len(paths)) if new[r]), key=lambda r: (new[r], len(paths[r])))
    scatter, base, tiles = np.empty(count, np.int64), 0, []
    start = 0
    while start < len(order):
        wide, long, stop = new[order[start]], len(paths[order[start]]), start + 1
        while stop < len(order):
            longer = max(long, len(paths[order[stop]]))
            if (stop + 1 - start) * new[order[stop]] * longer > _TILE_SCORES:
                break
            wide, long, stop = new[order[stop]], longer, stop + 1
        rows, start = order[start:stop], stop
        queries, keys = np.zeros((len(rows), wide), np.int64), np.zeros((len(rows), long), np.int64)
        limit = np.zeros((len(rows), wide), np.int64)
        for i, r in enumerate(rows):
            queries[i, :new[r]], keys[i, :len(paths[r])] = paths[r][shared[r]:], paths[r]
            limit[i, :new[r]] = np.arange(shared[r], len(paths[r]))
            scatter[paths[r][shared[r]:]] = base + i * wide + np.arange(new[r])
        base += len(rows) * wide
        hidden = torch.arange(long, device=device) > torch.from_numpy(limit).to(device)[..., None]
        bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
        tiles.append(Tile(torch.from_numpy(queries).to(device), torch.from_numpy(keys).to(device), bias))
    return tuple(tiles), scatter


def hidden_states(model: Qwen3, packed: Packed) -> Tensor:
    """Hidden states before the final norm [n, hidden], one per node."""
    def attend(q: Tensor, keys_values: Tensor) -> Tensor:
        return kernels.attention(q, keys_values, packed.tiles, packed.scatter)

    return model.run(packed.ids, packed.positions, lambda _: attend)


def log_probabilities(model: Qwen3, packed: Packed, ids: npt.NDArray[np.integer],
                      at: npt.NDArray[np.integer], temperature: float) -> Tensor:
    """Log-probability [m] of the flat batch's tokens ``at`` [m] (none of them first in its row), given all tokens
    before in their rows, of logits divided by ``temperature``. The output matrix is applied to these tokens only."""
    where, inverse = np.unique(packed.node[np.asarray(at) - 1], return_inverse=True)
    device = packed.ids.device
    x = hidden_states(model, packed)[torch.from_numpy(where).to(device)]
    return token_log_probabilities(model.logits(x), torch.from_numpy(inverse).to(device),
                                   torch.from_numpy(np.asarray(ids[at], np.int64)).to(device), temperature)


def token_log_probabilities(logits: Tensor, where: Tensor, ids: Tensor, temperature: float) -> Tensor:
    """Log-probability [m] of each of ``ids`` [m] by the row ``where`` [m] names of ``logits`` [k, vocab]."""
    return (logits / temperature).log_softmax(-1)[where, ids]
