"""The arithmetic of a layer with gradients derived by hand, for few passes over memory on a CPU.

Everything is computed on the device and in the precision (float32 or float64) of what comes in.

Norm weights that feed one matrix are folded into it. Rotary pairs (i, i + head_dim / 2) are brought next to each
other by permuting the rows of the query and key matrices, which changes no score, so that rotating is one complex
product. Residual additions ride on the matrix product before them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


LEAST_ROWS = 4
"""Matrix libraries take another path, with other rounding, for one to three rows; results that must not depend on
their neighbours are computed with at least this many."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """``x @ weight.T`` for x [m, k], m not below ``LEAST_ROWS`` inside."""
    rows = x.shape[0]
    return F.linear(F.pad(x, (0, 0, 0, LEAST_ROWS - rows)), weight)[:rows] if rows < LEAST_ROWS else F.linear(x, weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _RmsNorm.apply(x, weight, eps)


def qkv(x: Tensor, norm: Tensor, matrix: Tensor, q_norm: Tensor, k_norm: Tensor, cis: Tensor, order: Tensor,
        heads: int, eps: float) -> tuple[Tensor, Tensor]:
    """Norm, projection, norms of queries and keys, rotation; x [n, hidden], cis [n, 1, head_dim / 2] complex, ``order``
    the row order of ``matrix`` that pairs rotary halves. Returns q [n, heads, head_dim], scaled for the scores, and
    keys with values [n, kv_heads, 2 * head_dim]."""
    return _Qkv.apply(x, norm, matrix, q_norm, k_norm, cis, order, heads, eps)


def project(x: Tensor, y: Tensor, matrix: Tensor) -> Tensor:
    """``x + y @ matrix.T``."""
    return torch.addmm(x, y, matrix.t())


def mlp(x: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    """``x`` plus the gated MLP of its norm."""
    return _Mlp.apply(x, norm, gate_up, down, eps)


def experts(x: Tensor, norm: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top: int, normalise: bool,
            eps: float) -> Tensor:
    """``x`` plus the sparse MLP of its norm: each token through its ``top`` experts, weighted by the router."""
    return _Experts.apply(x, norm, router, gate_up, down, top, normalise, eps)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().mul_(1.0 / x.shape[-1]).add_(eps).rsqrt_()


def _norm_backward(grad: Tensor, normed: Tensor, inverse: Tensor) -> Tensor:
    """Gradient of ``x`` from that of ``normed = x * inverse``."""
    mean = torch.linalg.vecdot(grad, normed).unsqueeze(-1).mul_(1.0 / normed.shape[-1])
    return torch.addcmul(grad, normed, mean, value=-1.0).mul_(inverse)


class _RmsNorm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        normed = x * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        normed, inverse, weight = ctx.saved_tensors
        return _norm_backward(grad * weight, normed, inverse), (grad * normed).sum(0), None


class _Qkv(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, matrix: Tensor, q_norm: Tensor, k_norm: Tensor, cis: Tensor,
                order: Tensor, heads: int, eps: float) -> tuple[Tensor, Tensor]:
        n, dim = x.shape[0], q_norm.shape[0]
        kv = (matrix.shape[0] // dim - heads) // 2
        inverse = _inverse_rms(x, eps)
        normed = x * inverse
        folded = matrix.index_select(0, order).mul_(norm)
        product = F.linear(normed, folded).view(n, heads + 2 * kv, dim)
        rotated = product[:, :heads + kv]
        head_inverse = _inverse_rms(rotated, eps)
        head_normed = rotated * head_inverse
        table = torch.cat(((q_norm * dim ** -0.5).expand(heads, dim), k_norm.expand(kv, dim)))
        table = table.index_select(1, order[:dim])
        pairs = torch.view_as_complex((head_normed * table).view(n, heads + kv, dim // 2, 2))
        q = x.new_empty(n, heads, dim)
        keys_values = x.new_empty(n, kv, 2 * dim)
        torch.mul(pairs[:, :heads], cis, out=torch.view_as_complex(q.view(n, heads, dim // 2, 2)))
        torch.mul(pairs[:, heads:], cis, out=torch.view_as_complex(keys_values.view(n, kv, dim, 2))[..., :dim // 2])
        keys_values[..., dim:] = product[:, heads + kv:]
        ctx.save_for_backward(normed, inverse, folded, norm, matrix, head_normed, head_inverse, table, cis, order)
        return q, keys_values

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_q, grad_kv = grads
        normed, inverse, folded, norm, matrix, head_normed, head_inverse, table, cis, order = ctx.saved_tensors
        (n, heads, dim), kv = grad_q.shape, grad_kv.shape[1]
        back = grad_q.new_empty(n, heads + kv, dim)
        pairs = torch.view_as_complex(back.view(n, heads + kv, dim // 2, 2))
        conjugate = cis.conj().resolve_conj()
        torch.mul(torch.view_as_complex(grad_q.view(n, heads, dim // 2, 2)), conjugate, out=pairs[:, :heads])
        torch.mul(torch.view_as_complex(grad_kv.view(n, kv, dim, 2))[..., :dim // 2], conjugate, out=pairs[:, heads:])
        grad_table = torch.empty_like(table).index_copy_(1, order[:dim], (back * head_normed).sum(0))
        grad = grad_q.new_empty(n, heads + 2 * kv, dim)
        grad[:, heads + kv:] = grad_kv[..., dim:]
        grad[:, :heads + kv] = _norm_backward(back.mul_(table), head_normed, head_inverse)
        grad = grad.view(n, -1)
        grad_folded = torch.empty_like(matrix).index_copy_(0, order, grad.t().mm(normed))
        return (_norm_backward(grad.mm(folded), normed, inverse), (grad_folded * matrix).sum(0), grad_folded.mul_(norm),
                grad_table[:heads].sum(0).mul_(dim ** -0.5), grad_table[heads:].sum(0), None, None, None, None)


class _Mlp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        normed = x * inverse
        folded = gate_up * norm
        product = F.linear(normed, folded)
        sigmoid, gated, active = _gate(product)
        ctx.save_for_backward(normed, inverse, folded, norm, gate_up, down, product, sigmoid, gated, active)
        return torch.addmm(x, active, down.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        normed, inverse, folded, norm, gate_up, down, product, sigmoid, gated, active = ctx.saved_tensors
        grad_product = _gate_backward(grad.mm(down), product, sigmoid, gated)
        grad_folded = grad_product.t().mm(normed)
        grad_x = _norm_backward(grad_product.mm(folded), normed, inverse).add_(grad)
        return (grad_x, (grad_folded * gate_up).sum(0), grad_folded.mul_(norm), grad.t().mm(active), None)


def _gate(product: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gate and up [m, 2 * width] -> sigmoid of the gate, silu of the gate, silu times up, each [m, width]."""
    gate, up = product.chunk(2, -1)
    sigmoid = torch.sigmoid(gate)
    gated = gate * sigmoid
    return sigmoid, gated, gated * up


def _gate_backward(grad: Tensor, product: Tensor, sigmoid: Tensor, gated: Tensor) -> Tensor:
    width = grad.shape[-1]
    result = torch.empty_like(product)
    slope = torch.addcmul(sigmoid + gated, gated, sigmoid, value=-1.0)
    torch.mul(slope.mul_(grad), product[:, width:], out=result[:, :width])
    torch.mul(grad, gated, out=result[:, width:])
    return result


class _Experts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, top: int,
                normalise: bool, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        normed = x * inverse
        y = normed * norm
        probabilities = F.linear(y, router).softmax(-1)
        weight, chosen = probabilities.topk(top, -1)
        total = weight.sum(-1, keepdim=True) if normalise else torch.ones_like(weight[:, :1])
        weight = weight / total
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=router.shape[0]).tolist()
        token = order.div(top, rounding_mode="floor")
        gathered = y.index_select(0, token)
        product = x.new_empty(len(order), gate_up.shape[1])
        _by_expert(gathered, gate_up, counts, product)
        sigmoid, gated, active = _gate(product)
        output = torch.empty_like(gathered)
        _by_expert(active, down, counts, output)
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order), device=x.device)).view(-1, top)
        result = x
        for rank in range(top):
            result = torch.addcmul(result, output.index_select(0, place[:, rank]), weight[:, rank:rank + 1])
        ctx.save_for_backward(normed, inverse, y, norm, router, gate_up, down, probabilities, weight, chosen, total,
                              order, token, place, gathered, product, sigmoid, gated, active, output)
        ctx.counts, ctx.normalise = counts, normalise
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        (normed, inverse, y, norm, router, gate_up, down, probabilities, weight, chosen, total, order, token, place,
         gathered, product, sigmoid, gated, active, output) = ctx.saved_tensors
        spread = grad.index_select(0, token)
        grad_weight = torch.linalg.vecdot(spread, output).index_select(0, place.flatten()).view_as(weight)
        grad_output = spread.mul_(weight.flatten().index_select(0, order).unsqueeze(-1))
        grad_active, grad_down = torch.empty_like(active), torch.empty_like(down)
        for e, (a, b) in enumerate(_spans(ctx.counts)):
            torch.mm(grad_output[a:b], down[e], out=grad_active[a:b])
            torch.mm(grad_output[a:b].t(), active[a:b], out=grad_down[e])
        grad_product = _gate_backward(grad_active, product, sigmoid, gated)
        grad_gathered, grad_gate_up = torch.empty_like(gathered), torch.empty_like(gate_up)
        for e, (a, b) in enumerate(_spans(ctx.counts)):
            torch.mm(grad_product[a:b], gate_up[e], out=grad_gathered[a:b])
            torch.mm(grad_product[a:b].t(), gathered[a:b], out=grad_gate_up[e])
        if ctx.normalise:
            grad_weight = (grad_weight - torch.linalg.vecdot(grad_weight, weight).unsqueeze(-1)) / total
        grad_probabilities = torch.zeros_like(probabilities).scatter_(1, chosen, grad_weight)
        inner = torch.linalg.vecdot(grad_probabilities, probabilities).unsqueeze(-1)
        grad_logits = (grad_probabilities - inner).mul_(probabilities)
        grad_y = grad_logits.mm(router)
        for rank in range(place.shape[1]):
            grad_y.add_(grad_gathered.index_select(0, place[:, rank]))
        grad_norm = (grad_y * normed).sum(0)
        grad_x = _norm_backward(grad_y.mul_(norm), normed, inverse).add_(grad)
        return grad_x, grad_norm, grad_logits.t().mm(y), grad_gate_up, grad_down, None, None, None


def _by_expert(x: Tensor, matrices: Tensor, counts: list[int], out: Tensor) -> None:
    """``linear`` of each expert's rows with its matrix; x [m, k] has them in the experts' order."""
    for rows, matrix, result in zip(x.split(counts), matrices.unbind(), out.split(counts), strict=True):
        if rows.shape[0] >= LEAST_ROWS:
            torch.mm(rows, matrix.t(), out=result)
        elif rows.shape[0]:
            result.copy_(linear(rows, matrix))


def _spans(counts: list[int]) -> list[tuple[int, int]]:
    """First and last row of each expert; an expert without tokens has an empty span, whose products are zero."""
    spans, start = [], 0
    for count in counts:
        spans.append((start, start + count))
        start += count
    return spans


class _Attention(Function):
    """Attention of padded tiles; see :func:`attention`."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, keys_values: Tensor, tiles: Any, scatter: Tensor) -> Tensor:
        (n, heads, dim), kv = q.shape, keys_values.shape[1]
        group, saved, outputs = heads // kv, [], []
        flat_q, flat_kv = q.view(n, -1), keys_values.view(n, -1)
        for tile in tiles:
            (rows, wide), long = tile.queries.shape, tile.keys.shape[1]
            query = to_batch(flat_q.index_select(0, tile.queries.flatten()), rows, wide, kv, group * dim)
            query = query.reshape(rows * kv, wide * group, dim)
            cached = to_batch(flat_kv.index_select(0, tile.keys.flatten()), rows, long, kv, 2 * dim)
            score = torch.bmm(query, cached[..., :dim].transpose(1, 2))
            score.view(rows, kv, wide, group, long).add_(tile.bias.view(rows, 1, wide, 1, long))
            weight = score.softmax(-1)
            output = torch.bmm(weight, cached[..., dim:]).view(rows * kv, wide, group * dim)
            outputs.append(from_batch(output, rows, wide, kv))
            saved += [query, cached, weight]
        ctx.save_for_backward(scatter, *saved)
        ctx.tiles, ctx.shape = tiles, (n, heads, kv, dim)
        return torch.cat(outputs).index_select(0, scatter)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        scatter, *saved = ctx.saved_tensors
        n, heads, kv, dim = ctx.shape
        group = heads // kv
        padded = grad.new_zeros(sum(tile.queries.numel() for tile in ctx.tiles), heads * dim)
        padded.index_copy_(0, scatter, grad)
        grad_kv, grad_q, start = grad.new_zeros(n, kv * 2 * dim), [], 0
        for index, tile in enumerate(ctx.tiles):
            query, cached, weight = saved[3 * index:3 * index + 3]
            (rows, wide), long = tile.queries.shape, tile.keys.shape[1]
            output = to_batch(padded[start:start + rows * wide], rows, wide, kv, group * dim)
            output = output.reshape(rows * kv, wide * group, dim)
            start += rows * wide
            grad_weight = torch.bmm(output, cached[..., dim:].transpose(1, 2))
            grad_score = torch.ops.aten._softmax_backward_data(grad_weight, weight, -1, weight.dtype)
            grad_cached = torch.empty_like(cached)
            torch.bmm(grad_score.transpose(1, 2), query, out=grad_cached[..., :dim])
            torch.bmm(weight.transpose(1, 2), output, out=grad_cached[..., dim:])
            grad_kv.index_add_(0, tile.keys.flatten(), from_batch(grad_cached, rows, long, kv))
            back = torch.bmm(grad_score, cached[..., :dim]).view(rows * kv, wide, group * dim)
            grad_q.append(from_batch(back, rows, wide, kv))
        return torch.cat(grad_q).index_select(0, scatter).view(n, heads, dim), grad_kv.view(n, kv, 2 * dim), None, None


def attention(q: Tensor, keys_values: Tensor, tiles: Any, scatter: Tensor) -> Tensor:
    """q [n, heads, head_dim] (scaled), keys with values [n, kv_heads, 2 * head_dim] -> [n, heads * head_dim]. ``tiles``
    and ``scatter`` are those of :class:`grpo_bench_model_qwen3.packed.Packed`."""
    return _Attention.apply(q, keys_values, tiles, scatter)


def to_batch(x: Tensor, rows: int, length: int, kv: int, width: int) -> Tensor:
    """[rows * length, kv * width] -> [rows * kv, length, width]; no copy for one key-value head."""
    return x.view(rows, length, kv, width).transpose(1, 2).reshape(rows * kv, length, width)


def from_batch(x: Tensor, rows: int, length: int, kv: int) -> Tensor:
    return x.view(rows, kv, length, -1).transpose(1, 2).reshape(rows * length, -1)
