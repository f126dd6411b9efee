"""How ranks find each other, and who computes what.

Rank 0 opens a store on a free port of its host; every rank is told its address, so of environment variables only those
are read that say which interfaces to use. Collectives go through NCCL where CUDA is there, else through gloo.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from grpo_bench.network import use_interface_of

from .config import MegatronTrainerConfig

_SEED = 1
"""Of Megatron's tracker of random states; without dropout nothing is drawn from it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands. ``reports``: it is the one of its data-parallel replica that knows log-probabilities and
    hands them out."""

    rank: int
    ranks: int
    data: int
    data_ranks: int
    tensor: int
    context: int
    context_ranks: int
    reports: bool
    device: torch.device


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a rank meets the others: the ``address`` of the store, its own ``host``'s, and how many ranks of lower
    number that host has."""

    address: str
    host: str
    local: int


def open_store(ranks: int, host: str, wait_s: float) -> tuple[distributed.TCPStore, str]:
    """The store of rank 0 and its address, at ``host``, where the others reach this one."""
    store = distributed.TCPStore(host, 0, ranks, is_master=True, wait_for_workers=False,
                                 timeout=timedelta(seconds=wait_s))
    return store, f"{host}:{store.port}"


def join(config: MegatronTrainerConfig, meeting: Meeting, rank: int, ranks: int,
         store: distributed.TCPStore | None) -> Place:
    """Meet the others and divide the world into Megatron's groups."""
    from megatron.core import parallel_state as groups
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    wait = timedelta(seconds=config.collective_s)
    host, _, port = meeting.address.rpartition(":")
    cuda = torch.cuda.is_available()
    if cuda:
        # A rank that is given a GPU of its own sees that one only; otherwise those of a host are shared out.
        torch.cuda.set_device(meeting.local % torch.cuda.device_count())
    use_interface_of(meeting.host)
    if store is None:
        store = distributed.TCPStore(host, int(port), ranks, is_master=False, timeout=wait)
    distributed.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=ranks, timeout=wait)
    virtual = config.virtual_pipeline
    groups.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_parallel, pipeline_model_parallel_size=config.pipeline_parallel,
        virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None,
        context_parallel_size=config.context_parallel, expert_model_parallel_size=config.expert_parallel,
        expert_tensor_parallel_size=config.expert_tensor_parallel, create_gloo_process_groups=True)
    model_parallel_cuda_manual_seed(_SEED)
    tensor, context = groups.get_tensor_model_parallel_rank(), groups.get_context_parallel_rank()
    return Place(
        rank, ranks, groups.get_data_parallel_rank(), groups.get_data_parallel_world_size(), tensor, context,
        config.context_parallel, reports=tensor == context == 0 and groups.is_pipeline_last_stage(ignore_virtual=True),
        device=torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu"))


def from_first(place: Place, content: bytes) -> bytes:
    """What rank 0 holds, on every rank."""
    size = torch.tensor([len(content)], dtype=torch.int64, device=place.device)
    distributed.broadcast(size, 0)
    if place.rank == 0:
        data = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(place.device)
    else:
        data = torch.empty(int(size), dtype=torch.uint8, device=place.device)
    distributed.broadcast(data, 0)
    return content if place.rank == 0 else data.cpu().numpy().tobytes()


def from_all(value: Any) -> Sequence[Any]:
    """What every rank holds, by rank, on every rank."""
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values


def leave() -> None:
    """Give up Megatron's groups and the others."""
    from megatron.core import parallel_state as groups

    groups.destroy_model_parallel()
    distributed.destroy_process_group()
