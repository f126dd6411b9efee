"""Log-probabilities of sampled tokens, by a model that is cut over ranks.

Only the positions before sampled tokens reach the output matrix, whose rows, the vocabulary, are spread over
tensor-parallel ranks; each judged token's log-probability is put together over them without ever gathering logits.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from .batches import Indices, Micro
from .ranks import Place


def log_probabilities(model: Any, micro: Micro, place: Place, *, temperature: float, vocabulary: int) -> Tensor:
    """[M], one for each judged token, from the last pipeline stage; from others what the next one goes on with."""
    local = local_positions(micro, place)
    ids, positions = (torch.from_numpy(part[:, local]).to(place.device) for part in (micro.ids, micro.positions))
    judge = partial(_judge, micro=micro, local=local, place=place, temperature=temperature, vocabulary=vocabulary)
    packed = {} if micro.starts is None else {"packed_seq_params": _packed(micro, place)}
    return model(ids, positions, None, output_processor=judge, **packed)


def local_positions(micro: Micro, place: Place) -> Indices:
    """The positions of a sequence that this rank computes. Ranks that share sequences cut every row into twice as many
    pieces as they are; each takes one from the front and one from the back, as causal attention asks more of later
    positions."""
    if place.context_ranks == 1 or micro.starts is None:
        return np.arange(micro.ids.shape[1])
    pieces = 2 * place.context_ranks
    chosen = []
    for start, stop in pairwise(micro.starts):
        size = (stop - start) // pieces
        for piece in (place.context, pieces - 1 - place.context):
            chosen.append(np.arange(start + piece * size, start + (piece + 1) * size))
    return np.concatenate(chosen)


def _packed(micro: Micro, place: Place) -> Any:
    from megatron.core.packed_seq_params import PackedSeqParams

    assert micro.starts is not None and micro.lengths is not None
    bounds = np.concatenate(([0], np.cumsum(micro.lengths)))
    bounds, starts = (torch.from_numpy(part.astype(np.int32)).to(place.device) for part in (bounds, micro.starts))
    longest = int(np.diff(micro.starts).max())
    padded = {"cu_seqlens_q_padded": starts, "cu_seqlens_kv_padded": starts} if place.context_ranks > 1 else {}
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=longest,
                           max_seqlen_kv=longest, **padded)


def _judge(*, hidden_states: Tensor, output_layer: Any, output_weight: Tensor | None, scale_logits: Any, micro: Micro,
           local: Indices, place: Place, temperature: float, vocabulary: int, **_: Any) -> Tensor:
    """Log-probabilities [M] from hidden states [s, b, h], of which a tensor-parallel rank may have its part of s."""
    from megatron.core.tensor_parallel import gather_from_sequence_parallel_region, vocab_parallel_cross_entropy

    split = output_layer.sequence_parallel
    if split:  # the output layer below sums the gradient over ranks, so that here it is only cut again
        hidden_states = gather_from_sequence_parallel_region(hidden_states, tensor_parallel_output_grad=False)
    mine, before = _here(micro, local)
    chosen = hidden_states.flatten(0, 1)[torch.from_numpy(before).to(place.device)][:, None]
    output_layer.sequence_parallel = False
    try:
        logits, _ = output_layer(chosen, weight=output_weight)
    finally:
        output_layer.sequence_parallel = split
    logits = scale_logits(logits).float().div_(temperature)
    first = place.tensor * logits.shape[-1]
    if first + logits.shape[-1] > vocabulary:  # rows that only make the vocabulary divisible
        logits[..., max(vocabulary - first, 0):] = -torch.inf
    target = torch.from_numpy(micro.target[mine]).to(place.device)[:, None]
    values = -vocab_parallel_cross_entropy(logits, target)[:, 0]
    if place.context_ranks == 1:
        return values
    whole = values.new_zeros(len(micro.target)).index_copy(0, torch.from_numpy(mine).to(place.device), values)
    return _OverContext.apply(whole)


def _here(micro: Micro, local: Indices) -> tuple[Indices, Indices]:
    """Which of the M tokens this rank judges, and the position before each among the positions it computes."""
    if len(local) == micro.ids.shape[1]:
        return np.arange(len(micro.before)), micro.before
    where = np.full(micro.ids.size, -1)
    where[local] = np.arange(len(local))
    mine = np.flatnonzero(where[micro.before] >= 0)
    return mine, where[micro.before[mine]]


class _OverContext(torch.autograd.Function):
    """The sum over ranks that share sequences. All of them compute the same loss from it, so each takes its gradient as
    it is, and the gradients of weights add up over them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        from megatron.core import parallel_state as groups

        total = values.clone()
        distributed.all_reduce(total, group=groups.get_context_parallel_group())
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]
