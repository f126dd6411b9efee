"""Sampling with a key-value cache: slots of fixed capacity, each holding one sequence from its start.

One call of :func:`extend` runs a *chunk* of new tokens for each of many slots. All tokens share the matrix products.
Attention of chunks of one token (sampling) reads blocks of neighbouring slots in place, without copying the cache;
idle slots of a block cost a little and are ignored. Where most slots of a block are idle, those that are not are copied
together instead. Attention of longer chunks (prompts) is padded in tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .config import Qwen3Config
from .kernels import LEAST_ROWS, from_batch, to_batch
from .model import Attend, Qwen3

_BLOCK_SLOTS = 32
_TILE_SCORES = 1 << 15
_LEAST_VIEW = 32
_LEAST_TERMS = 16
_SPLIT = 128


class Cache:
    """Keys with values [slots, kv_heads, capacity, 2 * head_dim] per layer; who uses which slot is the caller's
    business."""

    def __init__(self, config: Qwen3Config, slots: int, capacity: int) -> None:
        self.shape = (slots, config.num_key_value_heads, _reach(capacity), 2 * config.head_dim)
        self.layers = [torch.zeros(self.shape) for _ in range(config.num_hidden_layers)]

    @property
    def slots(self) -> int:
        return self.shape[0]

    @property
    def capacity(self) -> int:
        return self.shape[2]

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target`` the first ``length`` positions of ``source``."""
        for store in self.layers:
            store[target, :, :length] = store[source, :, :length]


@dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens ``ids`` of the sequence in ``slot``, whose first ``start`` positions are cached."""

    slot: int
    start: int
    ids: Sequence[int]

    @property
    def end(self) -> int:
        return self.start + len(self.ids)


@torch.inference_mode()
def extend(model: Qwen3, cache: Cache, chunks: Sequence[Chunk]) -> list[Tensor]:
    """Run the chunks, one per slot, and cache them; hidden states before the final norm [len(ids), hidden] of each.

    A row's result is the same whatever runs beside it, wherever the matrix library computes rows independently
    (:func:`grpo_bench_model_qwen3.rows_are_independent`).
    """
    ordered = sorted(range(len(chunks)), key=lambda index: (len(chunks[index].ids) > 1, chunks[index].slot))
    layout = _Layout(cache, [chunks[index] for index in ordered])

    def attend(layer: int) -> Attend:
        return lambda q, keys_values: layout.attend(cache.layers[layer], q, keys_values)

    parts = model.run(layout.ids, layout.positions, attend).split(layout.lengths)
    result: list[Tensor] = [parts[0]] * len(chunks)
    for index, part in zip(ordered, parts, strict=False):
        result[index] = part
    return result


@dataclass(frozen=True)
class _Block:
    """Slots of which most sample one token, ``first:last``; or, where ``picked`` [B] names them, scattered ones that
    all do, with ``stored`` [B * kv_heads] their rows of the cache. ``bias`` [slots, 1, 1, view] hides what is not
    cached."""

    bias: Tensor
    first: int = 0
    last: int = 0
    picked: Tensor | None = None
    stored: Tensor | None = None


@dataclass(frozen=True)
class _Prompts:
    """Chunks padded together: ``tokens`` are theirs among all, ``stored`` [B * kv_heads] names their rows of the cache,
    ``queries`` [B * width] are flat tokens, ``place`` [tokens] finds each among them, ``bias`` is [B, 1, width, 1,
    view]."""

    tokens: slice
    stored: Tensor
    queries: Tensor
    place: Tensor
    bias: Tensor


class _Layout:
    """Where the tokens of one :func:`extend` stand. Chunks come with single tokens first. At least ``LEAST_ROWS``
    tokens run; the spare ones belong to no sequence and are dropped."""

    def __init__(self, cache: Cache, chunks: Sequence[Chunk]) -> None:
        slots, self.kv_heads, capacity, _ = cache.shape
        self.slots = slots
        self.lengths = [len(chunk.ids) for chunk in chunks]
        total = sum(self.lengths)
        self.spare = max(0, LEAST_ROWS - total)
        if self.spare:
            self.lengths.append(self.spare)
        self.ids = torch.tensor([token for chunk in chunks for token in chunk.ids] + [0] * self.spare)
        starts = torch.tensor([chunk.start for chunk in chunks])
        lengths = torch.tensor(self.lengths[:len(chunks)])
        first = lengths.cumsum(0) - lengths
        place = torch.arange(total) - first.repeat_interleave(lengths) + starts.repeat_interleave(lengths)
        self.positions = torch.cat((place, torch.zeros(self.spare, dtype=torch.int64)))
        owner = torch.tensor([chunk.slot for chunk in chunks]).repeat_interleave(lengths)
        heads = torch.arange(self.kv_heads)
        self.written = ((owner[:, None] * self.kv_heads + heads) * capacity + place[:, None]).flatten()
        self.singles = sum(length == 1 for length in self.lengths[:len(chunks)])
        self.single_slots = owner[:self.singles]
        self.blocks = self._blocks(chunks[:self.singles])
        self.spread = torch.zeros(0)
        self.prompts = self._prompts(chunks[self.singles:])

    def _blocks(self, chunks: Sequence[Chunk]) -> list[_Block]:
        ends = torch.zeros(self.slots, dtype=torch.int64)
        for chunk in chunks:
            ends[chunk.slot] = chunk.end
        blocks, scattered = [], []
        for first in range(0, self.slots, _BLOCK_SLOTS):
            inside = ends[first:first + _BLOCK_SLOTS]
            used = inside.nonzero().flatten()
            if not len(used):
                continue
            low, high = int(used[0]), int(used[-1]) + 1
            if 2 * len(used) < high - low:
                scattered.append(used + first)
            else:
                blocks.append(_Block(_hidden(inside[low:high]), first + low, first + high))
        for picked in torch.cat(scattered).split(_BLOCK_SLOTS) if scattered else ():
            stored = (picked[:, None] * self.kv_heads + torch.arange(self.kv_heads)).flatten()
            blocks.append(_Block(_hidden(ends[picked]), picked=picked, stored=stored))
        return blocks

    def _prompts(self, chunks: Sequence[Chunk]) -> list[_Prompts]:
        result, token = [], self.singles
        index = 0
        while index < len(chunks):
            rows, width, view = 0, 0, _LEAST_VIEW
            while index + rows < len(chunks):
                chunk = chunks[index + rows]
                wider, longer = max(width, len(chunk.ids)), max(view, _reach(chunk.end))
                if rows and (rows + 1) * wider * longer > _TILE_SCORES:
                    break
                rows, width, view = rows + 1, wider, longer
            tile = self._tile(chunks[index:index + rows], token, width, view)
            result.append(tile)
            token, index = tile.tokens.stop, index + rows
        return result

    def _tile(self, chunks: Sequence[Chunk], token: int, width: int, view: int) -> _Prompts:
        lengths = torch.tensor([len(chunk.ids) for chunk in chunks])
        starts = torch.tensor([chunk.start for chunk in chunks])
        column = torch.arange(width)
        real = column < lengths[:, None]
        queries = torch.full(real.shape, token).masked_scatter_(real, torch.arange(token, token + int(lengths.sum())))
        hidden = torch.arange(view) > (starts[:, None] + column)[..., None]
        bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, :, None]
        slots = torch.tensor([chunk.slot for chunk in chunks])[:, None]
        stored = (slots * self.kv_heads + torch.arange(self.kv_heads)).flatten()
        return _Prompts(slice(token, token + int(lengths.sum())), stored, queries.flatten(),
                        real.flatten().nonzero().flatten(), bias)

    def attend(self, store: Tensor, q: Tensor, keys_values: Tensor) -> Tensor:
        (n, heads, dim), kv = q.shape, self.kv_heads
        capacity, group = store.shape[2], heads // kv
        real = n - self.spare
        store.view(-1, 2 * dim).index_copy_(0, self.written, keys_values[:real].view(real * kv, 2 * dim))
        result = torch.zeros(n, heads * dim)
        flat = q.view(n, heads * dim)
        if self.singles:
            if not len(self.spread):  # one for all layers: rows of idle slots keep what is finite and nobody reads
                self.spread = torch.zeros(self.slots, heads * dim)
            spread = self.spread.index_copy_(0, self.single_slots, flat[:self.singles])
            for block in self.blocks:
                rows, view = block.bias.shape[0], block.bias.shape[-1]
                if block.picked is None or block.stored is None:
                    query = spread[block.first:block.last]
                    cached = store[block.first:block.last].view(rows * kv, capacity, 2 * dim)[:, :view]
                else:
                    query = spread.index_select(0, block.picked)
                    near = store.view(self.slots * kv, -1)[:, :view * 2 * dim]
                    cached = near.index_select(0, block.stored).view(rows * kv, view, 2 * dim)
                output = _weigh(query.view(rows * kv, group, dim), cached, block.bias, (rows, kv, group, view))
                if block.picked is None:
                    spread[block.first:block.last] = output.reshape(rows, heads * dim)
                else:
                    spread.index_copy_(0, block.picked, output.reshape(rows, heads * dim))
            result[:self.singles] = spread.index_select(0, self.single_slots)
        for tile in self.prompts:
            rows, width, view = tile.bias.shape[0], tile.bias.shape[2], tile.bias.shape[-1]
            query = to_batch(flat.index_select(0, tile.queries), rows, width, kv, group * dim)
            cached = store.view(self.slots * kv, -1)[:, :view * 2 * dim].index_select(0, tile.stored)
            output = _weigh(query.reshape(rows * kv, width * group, dim), cached.view(rows * kv, view, 2 * dim),
                            tile.bias, (rows, kv, width, group, view))
            output = from_batch(output.reshape(rows * kv, width, group * dim), rows, width, kv)
            result[tile.tokens] = output.index_select(0, tile.place)
        return result


def _reach(end: int) -> int:
    """How many positions attention reads of rows that end at ``end`` at most: a multiple of ``_LEAST_TERMS``, since
    matrix libraries round otherwise where the last piece of a sum has few terms."""
    return max(-(-end // _LEAST_TERMS) * _LEAST_TERMS, _LEAST_VIEW)


def _hidden(ends: Tensor) -> Tensor:
    """Bias [slots, 1, 1, view] that hides what lies beyond each slot's end [slots]."""
    beyond = torch.arange(_reach(int(ends.max()))) >= ends[:, None].clamp_min(1)
    return torch.zeros(beyond.shape).masked_fill_(beyond, -torch.inf)[:, None, None]


def _weigh(query: Tensor, cached: Tensor, bias: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Attention of query [b, m, head_dim] on cached [b, view, 2 * head_dim]; ``bias`` broadcasts to ``shape``.

    Sums over the view go in pieces of fixed length, so that the order of additions, and with it the rounding, does not
    depend on how far the view reaches beyond a row's own end.
    """
    rows, view, dim = query.shape[1], cached.shape[1], query.shape[-1]
    if rows < LEAST_ROWS:
        query = F.pad(query, (0, 0, 0, LEAST_ROWS - rows))
    score = torch.bmm(query, cached[..., :dim].transpose(1, 2))[:, :rows]
    weight = score.reshape(shape).add_(bias).softmax(-1).view(-1, rows, view)
    if rows < LEAST_ROWS:
        weight = F.pad(weight, (0, 0, 0, LEAST_ROWS - rows))
    output = torch.bmm(weight[..., :_SPLIT], cached[:, :_SPLIT, dim:])
    for start in range(_SPLIT, view, _SPLIT):
        output.baddbmm_(weight[..., start:start + _SPLIT], cached[:, start:start + _SPLIT, dim:])
    return output[:, :rows]
