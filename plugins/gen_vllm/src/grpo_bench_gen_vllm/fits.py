"""Whether an engine could start: settings against the environment's inventory and the policy's shape. PlanError says
what cannot be and what to set instead, Missing all that only the machine lacks; nothing is started, and vLLM is not
imported."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from grpo_bench.contract import PlanError, Placement, PolicyFacts, Site

from .checkpoint import Model
from .config import VllmGeneratorConfig
from .hosts import Spread
from .memory import Footprint

MIB = 2**20
_STATE_DIM = 128
"""The only key dimension of linear attention that vLLM's CPU kernels compute."""

_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "table"}
_WORDS = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
          "table": "a table"}
_SHOWN = 6


def check_arguments(given: Mapping[str, Any], arguments: Mapping[str, Any], *, engine: Mapping[str, Any],
                    version: str) -> None:
    """Every argument must be one that this vLLM has, with a value it takes."""
    for name, value in given.items():
        where = f"engine.{name}" if name in engine else name
        if name not in arguments:
            near = difflib.get_close_matches(name, arguments, n=3, cutoff=0.5)
            raise PlanError(f"{where}: vLLM {version} has no engine argument {name!r}",
                            hint=f"nearest: {', '.join(near)}" if near else "leave it out")
        if wrong := _wrong_value(value, arguments[name]):
            raise PlanError(f"{where} = {value!r} is not possible with vLLM {version}: {wrong}")


def _wrong_value(value: Any, argument: Mapping[str, Any]) -> str:
    types, choices = set(argument["types"]), argument["choices"]
    kind = _KINDS.get(type(value), "other")
    if "other" in types or (kind == "int" and "float" in types):
        return ""
    if kind not in types:
        return f"it takes {' or '.join(_WORDS[name] for name in _WORDS if name in types)}"
    if choices is None or value in choices or kind not in {_KINDS[type(choice)] for choice in choices}:
        return ""
    near = difflib.get_close_matches(str(value), [str(choice) for choice in choices], n=_SHOWN, cutoff=0.4)
    words = ", ".join(near or [str(choice) for choice in choices[:_SHOWN]])
    return f"nearest of its {len(choices)} values: {words}" if len(choices) > _SHOWN else f"it takes {words}"


def check_hosts(config: VllmGeneratorConfig, spread: Spread, *, cuda: bool) -> None:
    """An engine's processes must go evenly over its hosts, and vLLM tells from the GPUs that a process sees which
    others are on its host. ``cuda``: that the engines' environment has GPUs is known."""
    hosts, ranks, gpus = spread.hosts, config.tensor_parallel, spread.placement.gpus
    if hosts > 1 and ranks % hosts:
        raise PlanError(f"tensor_parallel = {ranks}: an engine's processes do not go evenly over {hosts} hosts",
                        hint=f"a multiple of {hosts}, or another hardware setting")
    if hosts > 1 and gpus != ranks and (gpus or cuda):
        raise PlanError(f"an engine over {hosts} hosts has {ranks} processes and {gpus} GPUs of its own",
                        hint="the hardware must give it a GPU for each process")


def check_model(config: VllmGeneratorConfig, policy: PolicyFacts, model: Model, inventory: Mapping[str, Any]) -> None:
    """The policy must be one that this vLLM can compute, where an inventory tells, divided as the settings say."""
    known = inventory.get("architectures")
    if known is not None and model.architecture not in known:
        near = difflib.get_close_matches(model.architecture, known, n=3, cutoff=0.6)
        raise PlanError(f"vLLM {inventory['versions']['vllm']} knows no architecture {model.architecture!r}, which "
                        f"config.json of {policy.checkpoint} names", hint=f"nearest: {', '.join(near)}" if near else "")
    if model.positions is not None and policy.max_context > model.positions:
        raise PlanError(f"policy.max_context = {policy.max_context} is above the {model.positions} positions of the "
                        "policy", hint=f"at most {model.positions}")
    if config.expert_parallel and not model.experts:
        raise PlanError(f"expert_parallel: {model.architecture} of {policy.checkpoint} has no experts")
    for what, size in _divided(config, model):
        if size % config.tensor_parallel:
            raise PlanError(f"tensor_parallel = {config.tensor_parallel} does not divide the policy's {size} {what}",
                            hint=f"possible here: {_possible(config, model)}")
    if not _spread(config.tensor_parallel, model.kv_heads):
        raise PlanError(f"tensor_parallel = {config.tensor_parallel} neither divides the policy's {model.kv_heads} "
                        "heads of keys and values nor is a multiple of them",
                        hint=f"possible here: {_possible(config, model)}")


def _divided(config: VllmGeneratorConfig, model: Model) -> Iterator[tuple[str, int]]:
    """What tensor parallelism cuts into equal parts."""
    yield "attention heads", model.heads
    if model.linear_layers:
        yield "key heads of linear attention", model.size("linear_num_key_heads")
        yield "value heads of linear attention", model.size("linear_num_value_heads")
    if model.experts and not config.expert_parallel:
        yield "inner dimensions of an expert", model.size("moe_intermediate_size")
    if model.experts:
        yield "inner dimensions of the shared expert", model.size("shared_expert_intermediate_size")
    else:
        yield "inner dimensions of a feed-forward layer", model.size("intermediate_size")


def _spread(ranks: int, kv_heads: int) -> bool:
    return kv_heads % ranks == 0 or ranks % kv_heads == 0


def _possible(config: VllmGeneratorConfig, model: Model) -> str:
    fitting = (ranks for ranks in range(1, model.heads + 1) if _spread(ranks, model.kv_heads)
               and not any(size % ranks for _, size in _divided(config, model)))
    return ", ".join(str(ranks) for ranks in fitting)


def impossible(model: Model | None, inventory: Mapping[str, Any]) -> dict[str, str]:
    """What this environment's device cannot do, with the reason, by the setting that asks for it. ``model`` None: the
    policy is not known."""
    device = inventory["device"]
    if device["type"] == "cuda":
        return {}
    found = {"cuda_graphs": "there is no CUDA device: the model runs eagerly",
             "moe_backend": "there is no CUDA device: the experts' kernels are those of the CPU",
             "expert_parallel": "vLLM's CPU kernels crash on tokens whose expert another process holds"}
    if not device.get("avx512"):
        found["kv_cache_dtype fp8"] = "the CPU has no AVX-512"
    elif model and model.head_dim % 32:
        found["kv_cache_dtype fp8"] = f"on a CPU it needs heads of a multiple of 32, not {model.head_dim}"
    if model and model.linear_layers:
        found["dtype float32"] = "on a CPU vLLM computes linear attention in bfloat16 only"
    return found


def lacking(config: VllmGeneratorConfig, model: Model | None, site: Site) -> Iterator[str]:
    """What is asked for and is not there: vLLM would ignore it, or fail when it starts. ``model`` None: the policy is
    not known. Without an inventory of the engines' environment only GPUs are counted, those of the machine."""
    inventory, wanted = site.inventory, _processes(config, site.placement)
    kind = inventory["device"]["type"] if inventory else ""
    if kind == "none":
        yield ("the generator's environment has a vLLM for devices that this machine does not have (run where they "
               "are, or name an environment with a vLLM for CPUs)")
        return
    cuda = kind == "cuda"
    gpus = len(inventory["device"]["memory"]) if cuda else 0 if kind else site.machine.get("gpus", 0)
    if (cuda or _asks_for_gpus(config)) and not site.placement.nodes and wanted > gpus:
        yield _too_few(config, site.placement, gpus)
    hosts = Spread.of(site.placement, config.workers or site.placement.workers).hosts
    if kind == "cpu" and hosts not in (1, config.tensor_parallel):
        yield (f"an engine of {config.tensor_parallel} processes over {hosts} hosts: on CPUs vLLM gives a host one of "
               f"them (run where GPUs are, or set tensor_parallel = {hosts})")
    if inventory:
        yield from _refused(config, impossible(model, inventory))


def check_kernels(model: Model, inventory: Mapping[str, Any]) -> None:
    """On a CPU vLLM has kernels for some sizes of heads only."""
    if inventory["device"]["type"] == "cuda":
        return
    if model.linear_layers and (dim := model.size("linear_key_head_dim")) != _STATE_DIM:
        raise PlanError(f"on a CPU vLLM computes linear attention with heads of {_STATE_DIM} only; this policy's "
                        f"linear_key_head_dim is {dim}")
    sizes = inventory["head_sizes"]
    if sizes and model.linear_layers < model.layers and model.head_dim not in sizes:
        raise PlanError(f"vLLM has no CPU kernel for attention heads of {model.head_dim}",
                        hint=f"it has: {', '.join(map(str, sizes))}")


def _refused(config: VllmGeneratorConfig, impossible: Mapping[str, str]) -> Iterator[str]:
    asked = {
        "cuda_graphs": config.cuda_graphs != "off", "moe_backend": config.moe_backend != "auto",
        "expert_parallel": config.expert_parallel,
        "kv_cache_dtype fp8": "fp8" in config.kv_cache_dtype, "dtype float32": config.dtype != "bfloat16",
    }
    instead = {"cuda_graphs": "off", "moe_backend": "auto", "expert_parallel": False, "kv_cache_dtype": "auto",
               "dtype": "bfloat16"}
    for what, why in impossible.items():
        if asked[what]:
            key = what.partition(" ")[0]
            yield (f"{key} = {json.dumps(getattr(config, key))} is not possible here: {why} (set {key} = "
                   f"{json.dumps(instead[key])})")


def _asks_for_gpus(config: VllmGeneratorConfig) -> bool:
    return config.cuda_graphs != "off" or config.moe_backend != "auto" or config.expert_parallel


def _processes(config: VllmGeneratorConfig, placement: Placement) -> int:
    return config.tensor_parallel * (config.workers or placement.workers)


def _too_few(config: VllmGeneratorConfig, placement: Placement, gpus: int) -> str:
    engines = counted(config.workers or placement.workers, config.tensor_parallel)
    return (f"{engines} take {_processes(config, placement)} GPUs; this machine has {gpus or 'none'} (run where they "
            "are, or lower workers or tensor_parallel)")


def memory_lacking(config: VllmGeneratorConfig, policy: PolicyFacts, need: Footprint, placement: Placement,
                   device: Mapping[str, Any]) -> Iterator[str]:
    """Where weights and cache do not fit ``device``, new weights do not fit beside them, or the cache cannot hold one
    whole sequence."""
    ranks, engines = config.tensor_parallel, config.workers or placement.workers
    whole, cuda = need.token * policy.max_context + need.sequence, device["type"] == "cuda"
    if need.cache < 0:
        yield (f"a process has weights of {size(need.weights)}, and gpu_memory_utilization = "
               f"{config.gpu_memory_utilization:g} lets it take {size(need.total)} of its GPU's "
               f"{size(min(device['memory']))} (raise tensor_parallel)")
    elif need.cache < whole:
        yield (f"the key-value cache of a process ({size(need.cache)}) cannot hold one sequence of "
               f"{policy.max_context:,} tokens ({size(whole)}) (raise kv_cache_gib, gpu_memory_utilization or "
               "tensor_parallel, or lower max_context)")
    total, room = need.total if cuda else ranks * engines * need.total, min(device["memory"])
    if total > room and not (placement.nodes and not cuda):
        takers = "a process takes" if cuda else f"{counted(engines, ranks)} take"
        yield (f"{takers} {size(total)} for weights and caches; {'its GPU' if cuda else 'this machine'} has "
               f"{size(room)} (lower workers or kv_cache_gib, or raise tensor_parallel)")
    elif cuda and total + need.refit > room:
        yield (f"a refit needs {size(need.refit)} beside weights and cache, which leave {size(room - total)} of "
               f"{size(room)} (lower gpu_memory_utilization or kv_cache_gib)")


def counted(engines: int, ranks: int) -> str:
    """Engines and their processes in words."""
    return f"{engines} engine{'s' * (engines != 1)} of {ranks} process{'es' * (ranks != 1)}"


def size(count: float) -> str:
    """Bytes as text, in MiB."""
    return f"{count / MIB:,.1f} MiB" if count < 100 * MIB else f"{count / MIB:,.0f} MiB"
