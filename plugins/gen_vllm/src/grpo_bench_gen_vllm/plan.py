"""What a plan is told: what remains of the plugin here, and how the engines will be laid out. No torch, no vLLM; all
that is known of the engines' environment is its inventory (:mod:`.inventory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_bench.contract import Capabilities, Missing, Need, PlanError, Site

from .arguments import engine_arguments
from .checkpoint import Model, known_model
from .config import VllmGeneratorConfig
from .fits import (
    check_arguments, check_hosts, check_kernels, check_model, counted, impossible, lacking, memory_lacking, size,
)
from .hosts import Spread
from .memory import ASSUMED, Footprint, footprint


def narrow(config: VllmGeneratorConfig, inventory: Mapping[str, Any]) -> Capabilities:
    """The descriptor's ``narrow``: weights are broadcast between GPUs only."""
    from . import plugin

    capabilities = plugin.capabilities
    if inventory["device"]["type"] == "cuda":
        return capabilities
    return replace(capabilities, receives=capabilities.receives - {"broadcast"},
                   lacking={"broadcast": "the generator's environment has no CUDA device"})


def needs(config: VllmGeneratorConfig) -> Need:
    """The descriptor's ``needs``: a GPU for each of an engine's processes, on as many hosts as that takes."""
    return Need(config.workers, config.tensor_parallel)


def describe(config: VllmGeneratorConfig, site: Site) -> Mapping[str, Any]:
    """The descriptor's ``describe``: facts, or PlanError for what could not start, Missing for what could elsewhere.
    What can be said without an environment, or of a policy that is known but not there, is said. What does not fit the
    hardware that engines were placed on fits nowhere."""
    inventory, policy, ranks = site.inventory, site.policy, config.tensor_parallel
    if inventory:
        given = engine_arguments(config, policy, backend="grpo_bench", seed=0, device=inventory["device"]["type"])
        check_arguments(given, inventory["arguments"], engine=config.engine, version=inventory["versions"]["vllm"])
    spread = Spread.of(site.placement, config.workers or site.placement.workers)
    check_hosts(config, spread, cuda=inventory.get("device", {}).get("type") == "cuda")
    model = known_model(policy)
    if model:
        check_model(config, policy, model, inventory)
    lacks = list(lacking(config, model, site))
    if model and inventory and not lacks:
        check_kernels(model, inventory)
    facts = {**_of_environment(model, site), "layout": _layout(config, spread), "tensor_parallelism": ranks,
             "pipeline_parallelism": 1, "expert_parallelism": ranks if config.expert_parallel else 1,
             "dtype": config.dtype}
    device = _computes_on(site)
    if model and device:
        need = footprint(config, model, device)
        short = list(memory_lacking(config, policy, need, site.placement, device))
        if short and _planned(site):
            raise PlanError("; ".join(short))
        lacks += short if not lacks else []
        facts |= {"memory_per_rank": _memory(need, policy.max_context), "memory_bytes": need.total,
                  "memory_assumed": list(ASSUMED)}
    if lacks:
        raise Missing("; ".join(lacks), items=lacks, facts=facts)
    return facts


def _of_environment(model: Model | None, site: Site) -> dict[str, Any]:
    inventory = site.inventory
    if not inventory:
        return {}
    found = {"versions": dict(inventory["versions"]), "interpreter": site.interpreter,
             "device": _device(inventory["device"])}
    return {**found, "not_possible": impossible(model, inventory)} if model else found


def _computes_on(site: Site) -> Mapping[str, Any] | None:
    """The device, as an inventory says it: that of the hosts that the hardware placed the engines on, else the one that
    the environment sees here; None where neither is known."""
    planned = _planned(site)
    return {"type": "cuda", "memory": [planned]} if planned else site.inventory.get("device")


def _planned(site: Site) -> int:
    """Memory of the GPUs that the hardware placed engines on; 0 where it placed them nowhere."""
    return site.machine.get("gpu_memory_bytes", 0) if site.placement.nodes else 0


def _memory(need: Footprint, context: int) -> dict[str, str]:
    return {"weights": size(need.weights), "kv_cache": _cache(need, context), "refit": size(need.refit),
            "at most": size(need.total)}


def _device(device: Mapping[str, Any]) -> str:
    names, memory = device["names"], size(min(device["memory"]))
    return f"{len(names)} x {names[0]} of {memory}" if device["type"] == "cuda" else f"CPU ({names[0]}) with {memory}"


def _layout(config: VllmGeneratorConfig, spread: Spread) -> str:
    ranks = config.tensor_parallel
    parts = f"tensor parallel {ranks}" + (f", expert parallel {ranks}" if config.expert_parallel else "")
    where = f", each on {spread.hosts} hosts" if spread.hosts > 1 else ""
    return f"{counted(spread.engines, ranks)}: {parts}{where}"


def _cache(need: Footprint, context: int) -> str:
    room = need.room(context)
    if room is None:
        return "none"
    tokens, sequences = room
    return f"{size(need.cache)}: {tokens:,} tokens, {sequences:,} sequences of {context:,}"
