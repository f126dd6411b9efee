"""Which ranks talk to each other, as Megatron numbers them.

Inside a pipeline stage ranks of one tensor group come one after the other, then context groups, then data groups;
experts count the same ranks anew: those of one expert (cut over ``expert_tensor_parallel``) first, then the experts.
Stages follow one another.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo_bench.contract import Need

from .config import MegatronTrainerConfig

Groups = tuple[tuple[int, ...], ...]


def needs(config: MegatronTrainerConfig) -> Need:
    """The descriptor's ``needs``: a GPU for each rank."""
    tensor, context, stages = config.tensor_parallel, config.context_parallel, config.pipeline_parallel
    if config.workers % config.model_ranks:
        return Need(config.workers, 1)
    stage = config.workers // stages
    experts = config.expert_parallel * config.expert_tensor_parallel
    kinds = {
        "tensor": _groups(config.workers, 1, tensor), "context": _groups(config.workers, tensor, context),
        "data": _groups(config.workers, tensor * context, stage // (tensor * context)),
        "pipeline": _groups(config.workers, stage, stages), "expert": _groups(config.workers, 1, experts),
    }
    return Need(config.workers, 1, {kind: groups for kind, groups in kinds.items() if groups})


def _groups(ranks: int, stride: int, size: int) -> Groups:
    """Groups of ``size`` ranks that lie ``stride`` apart; none where each would be alone."""
    return tuple(_members(ranks, stride, size)) if size > 1 else ()


def _members(ranks: int, stride: int, size: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, ranks, stride * size):
        for offset in range(stride):
            yield tuple(range(start + offset, start + stride * size, stride))
