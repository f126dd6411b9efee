"""From settings to the arguments of vLLM's engine: the one place where the two vocabularies meet. Pure; no vLLM here.

Every argument that decides what is computed is passed explicitly, also where vLLM's default is the same today: the
distribution that a run samples from must not follow a default. What a key of the profile sets, ``engine`` may not set
again; the rest of ``engine`` goes through unchanged and wins over the defaults that change no result: logging, and
weights that are not read at start because the first refit brings them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_bench.contract import PolicyFacts

    from .config import VllmGeneratorConfig

GIB = 2**30
CPU_CACHE_GIB = 1.0
"""Key-value cache of a process on a CPU whose settings do not say."""
COMPILE_MODE = 3
"""VLLM_COMPILE in vLLM's CompilationMode."""

EXTENSION = "grpo_bench_gen_vllm.extension.Extension"
"""The class that adds this plugin's methods to vLLM's workers."""

_DRAWN = "log-probabilities are those of the sampled tokens under the distribution drawn from, as training needs them"
_ONE_PIPELINE = "an engine is one pipeline stage of tensor_parallel processes; more engines are set by workers"
_FOLLOWS = "it follows from tensor_parallel and the hosts that the hardware gives an engine"
_NO_DRAFTS = "tokens are drawn from the policy alone: no speculative decoding"
_IDS_ONLY = "engines see token ids only; policy.checkpoint and the gateway know tokenizer and chat template"
_STAMPED = "every request carries all sampling parameters, from sampling and validation.sampling"

OWNED: Mapping[str, str] = {
    **dict.fromkeys(("model", "model_weights", "hf_config_path"), "set policy.checkpoint"),
    "max_model_len": "set policy.max_context", "seed": "set the run's seed",
    "tensor_parallel_size": "set tensor_parallel",
    **dict.fromkeys(("distributed_executor_backend", "nnodes", "node_rank", "master_addr", "master_port"), _FOLLOWS),
    "enable_expert_parallel": "set expert_parallel",
    "dtype": "set dtype", "max_num_seqs": "set sequences", "max_num_batched_tokens": "set batched_tokens",
    "enable_chunked_prefill": "set batched_tokens: prompts above it are always chunked",
    "enable_prefix_caching": "set prefix_caching", "kv_cache_dtype": "set kv_cache_dtype",
    "kv_cache_memory_bytes": "set kv_cache_gib", "gpu_memory_utilization": "set gpu_memory_utilization",
    "enforce_eager": "set cuda_graphs", "compilation_config": "set cuda_graphs", "moe_backend": "set moe_backend",
    "performance_mode": "set performance_mode",
    **dict.fromkeys(("logprobs_mode", "max_logprobs"), _DRAWN),
    **dict.fromkeys(("generation_config", "override_generation_config", "logits_processors"), _STAMPED),
    **dict.fromkeys(("tokenizer", "tokenizer_mode", "tokenizer_revision", "skip_tokenizer_init", "reasoning_parser",
                     "reasoning_parser_plugin"), _IDS_ONLY),
    **dict.fromkeys(("runner", "convert", "pooler_config"), "the engine generates"),
    "language_model_only": "the policy is used as a language model",
    **dict.fromkeys(("weight_transfer_config", "worker_cls", "worker_extension_cls"), "set refit.transport"),
    **dict.fromkeys(("speculative_config", "spec_method", "spec_model", "spec_tokens", "diffusion_config"), _NO_DRAFTS),
    **dict.fromkeys((
        "pipeline_parallel_size", "data_parallel_size", "data_parallel_rank", "data_parallel_start_rank",
        "data_parallel_size_local", "data_parallel_address", "data_parallel_rpc_port", "data_parallel_backend",
        "data_parallel_hybrid_lb", "data_parallel_external_lb", "data_parallel_multi_port_external_lb",
        "prefill_context_parallel_size", "decode_context_parallel_size",
    ), _ONE_PIPELINE),
}
"""Arguments that ``engine`` may not hold, each with what to do instead or why it is fixed."""


def refuse_owned(engine: Mapping[str, Any]) -> None:
    """ValueError where ``engine`` holds an argument that the plugin sets itself."""
    for name in engine:
        if name in OWNED:
            raise ValueError(f"{name} is not for this table: {OWNED[name]}")


def engine_arguments(config: VllmGeneratorConfig, policy: PolicyFacts, *, backend: str, seed: int,
                     device: str) -> dict[str, Any]:
    """Keyword arguments of ``AsyncEngineArgs``, plain data. ``backend`` is the weight-transfer backend by name,
    ``device`` what the engine runs on: ``cpu`` or ``cuda``."""
    refuse_owned(config.engine)
    arguments: dict[str, Any] = {
        "disable_log_stats": True,
        "enable_log_requests": False,
        "use_tqdm_on_load": False,
        "load_format": "dummy",
        **config.engine,
        "distributed_executor_backend": "uni" if config.tensor_parallel == 1 else "mp",
        "model": str(policy.checkpoint),
        "skip_tokenizer_init": True,
        "max_model_len": policy.max_context,
        "seed": seed,
        "dtype": config.dtype,
        "generation_config": "vllm",
        "logprobs_mode": "processed_logprobs",
        "max_logprobs": 1,
        "language_model_only": True,
        "tensor_parallel_size": config.tensor_parallel,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "enable_expert_parallel": config.expert_parallel,
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": config.batched_tokens,
        "enable_prefix_caching": config.prefix_caching,
        "kv_cache_dtype": config.kv_cache_dtype,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "moe_backend": config.moe_backend,
        "performance_mode": config.performance_mode,
        "weight_transfer_config": {"backend": backend},
        "worker_extension_cls": EXTENSION,
        **_graphs(config),
    }
    if config.sequences is not None:
        arguments["max_num_seqs"] = config.sequences
    cache_gib = config.kv_cache_gib if config.kv_cache_gib is not None or device != "cpu" else CPU_CACHE_GIB
    if cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gib * GIB)
    return arguments


def over_hosts(hosts: int, node: int, address: str) -> dict[str, Any]:
    """Further arguments on the ``node``-th of an engine's hosts, the first being 0; the engine's processes meet at
    ``address``, a ``host:port`` of that one."""
    host, _, port = address.rpartition(":")
    return {"nnodes": hosts, "node_rank": node, "master_addr": host, "master_port": int(port)}


def _graphs(config: VllmGeneratorConfig) -> dict[str, Any]:
    if config.cuda_graphs == "off":
        return {"enforce_eager": True}
    return {"enforce_eager": False,
            "compilation_config": {"mode": COMPILE_MODE, "cudagraph_mode": config.cuda_graphs.upper()}}
