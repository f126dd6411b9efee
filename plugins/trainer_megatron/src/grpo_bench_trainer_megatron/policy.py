"""A policy as Megatron holds it: a model made by Bridge of an HF checkpoint, wrapped for gradients that are summed over
data-parallel ranks, and Megatron's optimizer on it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .config import MegatronTrainerConfig
from .fields import Features, assign, ddp_fields, model_fields, optimizer_fields, resolve, typed

Fill = Callable[[Any, list[Any]], None]
"""Puts weights into chunks that are not wrapped yet; gets the bridge and the chunks, on every rank at once."""


@dataclass(frozen=True, slots=True)
class Policy:
    """``chunks`` are this rank's parts of the model, one for each virtual pipeline stage; ``optimizer`` is None for a
    reference, which never learns."""

    bridge: Any
    provider: Any
    chunks: list[Any]
    optimizer: Any = None

    @property
    def vocabulary(self) -> int:
        """Tokens that exist; the matrices may hold some more rows."""
        return self.provider.vocab_size

    def settle(self) -> None:
        """Have every rank hold the weights that the optimizer made, where they would else be gathered by the next
        forward pass: they may be sent before."""
        for chunk in self.chunks:
            if chunk.ddp_config.overlap_param_gather:
                chunk.start_param_sync(force_sync=True)


def reference(config: MegatronTrainerConfig, features: Features, checkpoint: Path, fill: Fill) -> Policy:
    """The policy of a checkpoint, to be asked only."""
    bridge, provider = _provider(config, features, checkpoint)
    return Policy(bridge, provider, _chunks(provider, [partial(_filled, fill, bridge), _frozen]))


def trained(config: MegatronTrainerConfig, features: Features, checkpoint: Path, fill: Fill) -> Policy:
    """The policy of a checkpoint, to be trained."""
    from megatron.core.distributed import DistributedDataParallelConfig

    bridge, provider = _provider(config, features, checkpoint)
    hooks = [partial(_filled, fill, bridge)] + ([_router_frozen] if config.freeze_router else [])
    chunks = _chunks(provider, hooks, typed(DistributedDataParallelConfig, ddp_fields(config)))
    policy = Policy(bridge, provider, chunks)
    return replace(policy, optimizer=_optimizer(config, policy))


def _provider(config: MegatronTrainerConfig, features: Features, checkpoint: Path) -> tuple[Any, Any]:
    from megatron.bridge import AutoBridge

    bridge = AutoBridge.from_hf_pretrained(str(checkpoint), dtype=getattr(torch, config.precision))
    provider = bridge.to_megatron_provider(load_weights=False)
    assign(provider, model_fields(config, features))
    if not resolve(config.transformer_engine, features.transformer_engine):
        from .layers import block_spec

        provider.transformer_layer_spec = block_spec
    provider.should_pad_vocab = bool(provider.vocab_size % config.tensor_parallel)
    provider.perform_initialization = False  # every weight is filled
    provider.calculate_per_token_loss = True  # sums of gradients stay sums: the loss is divided by global counts
    if provider.deterministic_mode:
        os.environ.setdefault("NCCL_ALGO", "Ring")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ["NVTE_ALLOW_NONDETERMINISTIC_ALGO"] = "0"  # Transformer Engine's attention is refused without
        if features.cuda:
            torch.use_deterministic_algorithms(True)
    provider.finalize()
    return bridge, provider


def _chunks(provider: Any, hooks: list[Any], wrapping: Any = None) -> list[Any]:
    return provider.provide_distributed_model(
        ddp_config=wrapping, wrap_with_ddp=wrapping is not None, pre_wrap_hook=hooks, data_parallel_random_init=False,
        use_cpu_initialization=provider.use_cpu_initialization, init_model_with_meta_device=False)


def _optimizer(config: MegatronTrainerConfig, policy: Policy) -> Any:
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.utils import get_model_config

    def summed(chunks: list[Any], tokens: Any, **options: Any) -> None:
        """Megatron would divide by the tokens it counts."""
        finalize_model_grads(chunks, None, **options)

    model = get_model_config(policy.chunks[0])
    model.finalize_model_grads_func = summed
    if policy.chunks[0].ddp_config.overlap_grad_reduce:  # gradients are summed over ranks after the last micro-batch
        unsummed = [chunk.no_sync for chunk in policy.chunks]
        model.no_sync_func = unsummed[0] if len(unsummed) == 1 else unsummed
    optimizer = get_megatron_optimizer(typed(OptimizerConfig, optimizer_fields(config)), policy.chunks)
    for group in optimizer.param_groups:  # else the work of Megatron's scheduler, which a constant rate does without
        group["weight_decay"] = config.weight_decay * group.get("wd_mult", 1.0)
    return optimizer


def _filled(fill: Fill, bridge: Any, chunks: list[Any]) -> list[Any]:
    fill(bridge, chunks)
    return chunks


def _router_frozen(chunks: list[Any]) -> list[Any]:
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if ".router." in name:
                parameter.requires_grad_(False)
    return chunks


def _frozen(chunks: list[Any]) -> list[Any]:
    for chunk in chunks:
        chunk.requires_grad_(False)
    return chunks
