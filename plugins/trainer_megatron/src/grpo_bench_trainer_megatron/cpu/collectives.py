"""Where gloo's collectives differ from NCCL's in what they take."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed


def install() -> None:
    barrier, exchange = distributed.barrier, distributed.all_to_all_single

    def all_meet(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return barrier(group=group, async_op=async_op)

    def all_exchange(output: Any, input: Any, output_split_sizes: Any = None, input_split_sizes: Any = None,
                     group: Any = None, async_op: bool = False) -> Any:
        return exchange(output, input, _plain(output_split_sizes), _plain(input_split_sizes), group=group,
                        async_op=async_op)

    distributed.barrier = all_meet  # Megatron's barriers name the GPU
    distributed.all_to_all_single = all_exchange  # the token dispatcher leaves split sizes as tensors off a GPU


def _plain(sizes: Any) -> Any:
    return sizes.tolist() if isinstance(sizes, torch.Tensor) else sizes
