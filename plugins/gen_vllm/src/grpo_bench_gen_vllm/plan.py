"""What a plan is told: what remains of the plugin here, and how the engines will be laid out. No torch, no vLLM; all
that is known of the engines' environment is its inventory (:mod:`.inventory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_bench.contract import Capabilities, Site

from .arguments import engine_arguments
from .checkpoint import read_model
from .config import VllmGeneratorConfig
from .fits import check_arguments, check_device, check_gpus, check_memory, check_model, counted, impossible, size
from .memory import Footprint, footprint


def narrow(config: VllmGeneratorConfig, inventory: Mapping[str, Any]) -> Capabilities:
    """The descriptor's ``narrow``: weights are broadcast between GPUs only."""
    from . import plugin

    capabilities = plugin.capabilities
    if inventory["device"]["type"] == "cuda":
        return capabilities
    return replace(capabilities, receives=capabilities.receives - {"broadcast"},
                   lacking={"broadcast": "the generator's environment has no CUDA device"})


def describe(config: VllmGeneratorConfig, site: Site) -> Mapping[str, Any]:
    """The descriptor's ``describe``: facts, or PlanError for what could not start, Missing for what could
    elsewhere."""
    inventory, policy = site.inventory, site.policy
    if not inventory:
        check_gpus(config, site)
    device, version = inventory["device"], inventory["versions"]["vllm"]
    given = engine_arguments(config, policy, backend="grpo_bench", seed=0, device=device["type"])
    check_arguments(given, inventory["arguments"], engine=config.engine, version=version)
    if not policy.vocab_size:
        check_device(config, None, site)
    model = read_model(policy.checkpoint)
    check_model(config, policy, model, inventory)
    check_device(config, model, site)
    need = footprint(config, model, device)
    check_memory(config, policy, need, site.placement, device)
    ranks = config.tensor_parallel
    return {
        "versions": dict(inventory["versions"]), "interpreter": site.interpreter, "device": _device(device),
        "layout": _layout(config, site), "tensor_parallelism": ranks, "pipeline_parallelism": 1,
        "expert_parallelism": ranks if config.expert_parallel else 1, "dtype": config.dtype,
        "memory_per_rank": {"weights": size(need.weights), "kv_cache": _cache(need, policy.max_context)},
        "not_possible": impossible(model, inventory),
    }


def _device(device: Mapping[str, Any]) -> str:
    names, memory = device["names"], size(min(device["memory"]))
    return f"{len(names)} x {names[0]} of {memory}" if device["type"] == "cuda" else f"CPU ({names[0]}) with {memory}"


def _layout(config: VllmGeneratorConfig, site: Site) -> str:
    engines, ranks = config.workers or site.placement.workers, config.tensor_parallel
    parts = f"tensor parallel {ranks}" + (f", expert parallel {ranks}" if config.expert_parallel else "")
    return f"{counted(engines, ranks)}: {parts}"


def _cache(need: Footprint, context: int) -> str:
    room = need.room(context)
    if need.cache is None or room is None:
        return "none"
    tokens, sequences = room
    return f"{size(need.cache)}: {tokens:,} tokens, {sequences:,} sequences of {context:,}"
