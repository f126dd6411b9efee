"""The gated delta rule on ragged rows, in chunks.

A row's memory S [key_dim, value_dim] starts at zero. Token t makes it ``exp(g_t) S``, reads there what its key k_t
recalls, writes the difference to its value v_t back with strength beta_t, and answers with its query: ``o_t = q_t S``.
Rows are cut into chunks. What tokens of one chunk do to each other is a triangular system, solved for all chunks of all
rows at once; only the memory goes from chunk to chunk, for all rows that have one left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

CHUNK = 32


@dataclass(frozen=True)
class Chunks:
    """N chunks, the first of all rows (longest row first), then the second of those that have one, and so on.
    ``tokens`` [N * CHUNK] are flat tokens, n where a chunk is not full; ``place`` [n] finds each token among them;
    ``rows`` tells how many rows have a first chunk, a second..."""

    tokens: Tensor
    place: Tensor
    rows: tuple[int, ...]


def cut(offsets: npt.NDArray[np.integer]) -> Chunks:
    """Chunks of rows ``offsets[r]:offsets[r + 1]`` of n flat tokens."""
    lengths = np.diff(offsets)
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = np.asarray(offsets[:-1])[order], lengths[order]
    rows = tuple(int((lengths > step * CHUNK).sum()) for step in range(-(-int(lengths[0]) // CHUNK)))
    within = np.arange(CHUNK)
    parts = []
    for step, count in enumerate(rows):
        at = step * CHUNK + within
        parts.append(np.where(at < lengths[:count, None], starts[:count, None] + at, offsets[-1]))
    tokens = np.concatenate(parts).reshape(-1)
    place = np.empty(int(offsets[-1]), np.int64)
    real = tokens < offsets[-1]
    place[tokens[real]] = np.flatnonzero(real)
    return Chunks(torch.from_numpy(tokens), torch.from_numpy(place), rows)


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunks: Chunks) -> Tensor:
    """q (scaled) and k [n, key_heads, key_dim], v [n, heads, value_dim], g (log of the decay) and beta [n, heads] ->
    [n, heads, value_dim]. Every key head serves ``heads / key_heads`` neighbouring heads."""
    (n, key_heads, key_dim), (heads, value_dim) = k.shape, v.shape[1:]
    serves = heads // key_heads
    total = len(chunks.tokens) // CHUNK

    def chunked(x: Tensor) -> Tensor:
        """[n, h, d] -> [N, h, CHUNK, d] with zeros where there is no token."""
        padded = torch.cat((x.flatten(1), x.new_zeros(1, x[0].numel())))
        return padded.index_select(0, chunks.tokens).view(total, CHUNK, *x.shape[1:]).transpose(1, 2)

    query, key = chunked(q).contiguous(), chunked(k).contiguous()
    scalars = chunked(torch.stack((g, beta), -1))
    decay, strength = scalars[..., 0].cumsum(-1), scalars[..., 1:]
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(~lower, -torch.inf).exp()

    def for_heads(x: Tensor) -> Tensor:
        return x.repeat_interleave(serves, 1) if serves > 1 else x

    overlap = for_heads(key @ key.transpose(-1, -2))
    seen = for_heads(query @ key.transpose(-1, -2)) * between
    system = (overlap * between * strength).tril(-1)
    grown = decay.exp()[..., None]
    sides = torch.cat((chunked(v), for_heads(key) * grown), -1) * strength
    written, recalled = _unit_lower_inverse_times(system, sides).split((value_dim, key_dim), -1)
    asked = for_heads(query) * grown
    last = decay[..., -1:, None]
    kept = for_heads(key) * (last - decay[..., None]).exp()
    reads = torch.cat((recalled, asked), -2)
    parts, memory, start = [], None, 0
    for step, count in enumerate(chunks.rows):
        here = slice(start, start + count)
        start += count
        if memory is None:
            new, answer = written[here], 0.0
        else:
            read = reads[here] @ memory[:count]
            new, answer = written[here] - read[..., :CHUNK, :], read[..., CHUNK:, :]
        parts.append(answer + seen[here] @ new)
        if step + 1 < len(chunks.rows):
            left = chunks.rows[step + 1]
            change = kept[here][:left].transpose(-1, -2) @ new[:left]
            memory = change if memory is None else memory[:left] * last[here][:left].exp() + change
    result = torch.cat(parts).transpose(1, 2).reshape(total * CHUNK, heads * value_dim)
    return result.index_select(0, chunks.place).view(n, heads, value_dim)


def _unit_lower_inverse_times(system: Tensor, sides: Tensor) -> Tensor:
    """``(1 + system)^-1 sides`` for strictly lower triangular ``system``."""
    identity = torch.eye(CHUNK)
    return torch.linalg.solve_triangular(identity + system, sides, upper=False, unitriangular=True)


def causal_convolution(x: Tensor, taps: Tensor, early: Sequence[Tensor]) -> Tensor:
    """silu of every channel's sum over its last tokens, x [n, channels], taps [reach, channels] with the newest last;
    ``early[i]`` are the tokens of x that have no token i + 1 places back in their row."""
    return _Convolution.apply(x, taps, early)


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, early: Sequence[Tensor]) -> Tensor:
        total = x * taps[-1]
        for back, absent in enumerate(early, start=1):
            total[back:].addcmul_(x[:-back], taps[-1 - back])
            wrong = absent[absent >= back]
            total.index_add_(0, wrong, x.index_select(0, wrong - back) * taps[-1 - back], alpha=-1.0)
        sigmoid = total.sigmoid()
        ctx.save_for_backward(x, taps, total, sigmoid)
        ctx.early = early
        return total * sigmoid

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, taps, total, sigmoid = ctx.saved_tensors
        grad = torch.addcmul(sigmoid, total * sigmoid, 1.0 - sigmoid).mul_(grads[0])
        grad_x, grad_taps = grad * taps[-1], [torch.linalg.vecdot(grad, x, dim=0)]
        for back, absent in enumerate(ctx.early, start=1):
            grad.index_fill_(0, absent, 0.0)  # what has no token at this distance has none further back either
            grad_x[:-back].addcmul_(grad[back:], taps[-1 - back])
            grad_taps.append(torch.linalg.vecdot(grad[back:], x[:-back], dim=0))
        return grad_x, torch.stack(grad_taps[::-1]), None
