"""What a plan is told: what remains of the trainer here, and how its ranks will be laid out. No torch, no Megatron; all
that is known of the ranks' environment is its inventory (:mod:`.inventory`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from grpo_bench.contract import Capabilities, Missing, Site

from .checks import check_fields, check_layout, check_model, check_waits, lacking, memory_lacking
from .config import MegatronTrainerConfig
from .memory import ASSUMED, memory_of, size
from .model import Shape, known_shape

_MLLOG = {"float32": "fp32", "bfloat16": "bfloat16"}
_BYTES = {"float32": 4, "bfloat16": 2}


def narrow(config: MegatronTrainerConfig, inventory: Mapping[str, Any]) -> Capabilities:
    """The descriptor's ``narrow``: weights are broadcast between GPUs only; GPUs are deterministic where asked to."""
    from . import plugin

    found, lacking = plugin.capabilities, {}
    cuda = inventory["device"]["type"] == "cuda"
    if not cuda:
        found = replace(found, sends=found.sends - {"broadcast"})
        lacking["broadcast"] = "the trainer's environment has no CUDA device"
    if cuda and not config.deterministic:
        found = replace(found, deterministic=False)
        lacking["deterministic"] = "trainer.deterministic is false"
    return replace(found, lacking=lacking)


def describe(config: MegatronTrainerConfig, site: Site) -> Mapping[str, Any]:
    """The descriptor's ``describe``: facts, or PlanError for what could not run, Missing for what could elsewhere. What
    can be said without an environment, or of a policy that is known but not there, is said."""
    inventory, shape = site.inventory, known_shape(site.policy)
    if inventory:
        check_fields(config, inventory)
        if shape:
            check_model(shape, inventory)
    if shape:
        check_layout(config, shape)
    check_waits(config, site)
    lacks = list(lacking(config, shape, site))
    facts = {**_mllog(config), **_of_environment(shape, site), "ranks": config.workers,
             "layout": layout_words(config), "precision": config.precision}
    if shape:
        memory = memory_of(config, shape, reference=site.loss.kl.penalty > 0, context=site.policy.max_context)
        lacks += memory_lacking(config, memory, site)
        facts |= {"parameters": shape.parameters, "weights_bytes": shape.parameters * _BYTES[config.precision],
                  "memory_per_rank": memory.shown(), "memory_bytes": memory.total, "memory_assumed": list(ASSUMED)}
    if lacks:
        raise Missing("; ".join(lacks), items=lacks, facts=facts)
    return facts


def _of_environment(shape: Shape | None, site: Site) -> dict[str, Any]:
    inventory = site.inventory
    if not inventory:
        return {}
    found = {"versions": dict(inventory["versions"]), "interpreter": site.interpreter,
             "device": _device(inventory["device"])}
    return {**found, "not_possible": not_possible(shape, inventory)} if shape else found


def layout_words(config: MegatronTrainerConfig) -> str:
    """How ranks share the work, for people."""
    parts = {"tensor": config.tensor_parallel, "pipeline": config.pipeline_parallel,
             "context": config.context_parallel, "expert": config.expert_parallel,
             "expert tensor": config.expert_tensor_parallel, "data": data_parallel(config)}
    words = ", ".join(f"{name} parallel {count}" for name, count in parts.items() if count > 1)
    sequence = ", sequence parallel" if config.sequence_parallel_on else ""
    stages = f", {config.virtual_pipeline} pieces a stage" if config.virtual_pipeline > 1 else ""
    return f"{config.workers} rank{'s' * (config.workers != 1)}: {words or 'one replica'}{sequence}{stages}"


def data_parallel(config: MegatronTrainerConfig) -> int:
    """Replicas of the dense weights."""
    return config.workers // (config.tensor_parallel * config.pipeline_parallel * config.context_parallel)


def not_possible(shape: Shape, inventory: Mapping[str, Any]) -> Mapping[str, str]:
    """What the environment leaves out, and why."""
    cuda, features = inventory["device"]["type"] == "cuda", inventory["features"]
    found: dict[str, str] = {}
    if not (cuda and features["transformer_engine"]):
        why = "no Transformer Engine" if cuda else "no CUDA device"
        found |= dict.fromkeys(("transformer_engine", "context_parallel", "grouped_gemm", "fusions",
                                "precision_aware_optimizer"), why)
    elif not features["apex"]:
        found["gradient_accumulation_fusion"] = "no Apex"
    if not cuda:
        found["virtual_pipeline"] = "no CUDA device"
    if not (cuda and features["deep_ep"]):
        found["flex dispatcher"] = "no deep_ep" if cuda else "no CUDA device"
    if shape.delta_net and not (cuda and features["flash_linear_attention"]):
        found["packing"] = "the gated delta net packs rows only with flash-linear-attention, on a GPU"
    return found


def _mllog(config: MegatronTrainerConfig) -> dict[str, Any]:
    """What is computed, in MLLOG's words. A micro-batch is a pack of whole rows, or one row."""
    lowest = _MLLOG[config.precision]
    return {
        "opt_name": "adamw", "opt_base_learning_rate": config.learning_rate,
        "opt_end_learning_rate": config.learning_rate, "opt_adamw_beta_1": config.betas[0],
        "opt_adamw_beta_2": config.betas[1], "opt_adamw_epsilon": config.eps,
        "opt_adamw_weight_decay": config.weight_decay, "opt_gradient_clip_norm": config.clip_norm,
        "opt_learning_rate_warmup_steps": 0, "opt_learning_rate_decay_schedule": "constant", "micro_batch_size": 1,
        "tensor_parallelism": config.tensor_parallel, "pipeline_parallelism": config.pipeline_parallel,
        "context_parallelism": config.context_parallel, "expert_parallelism": config.expert_parallel,
        "lowest_numerical_precision_in_linear": "fp8" if config.model.get("fp8") else lowest,
        "lowest_numerical_precision_in_attn": lowest, "lowest_numerical_precision_in_comm": lowest,
    }


def _device(device: Mapping[str, Any]) -> str:
    names, memory = device["names"], size(min(device["memory"]))
    return f"{len(names)} x {names[0]} of {memory}" if device["type"] == "cuda" else f"CPU ({names[0]}) with {memory}"
