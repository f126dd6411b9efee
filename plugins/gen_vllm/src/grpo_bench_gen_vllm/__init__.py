"""Sampling by vLLM engines, in processes under an interpreter of their own."""

from grpo_bench.contract import Capabilities, Plugin, Role, WorkerEnv

from .config import VllmGeneratorConfig

_INVENTORY = "grpo_bench_gen_vllm.inventory:take"

plugin = Plugin(
    name="vllm",
    role=Role.GENERATOR,
    summary="vLLM engines, on CPU or CUDA",
    config=VllmGeneratorConfig,
    factory="grpo_bench_gen_vllm.controller:make",
    client="grpo_bench_gen_vllm.client:make",
    env=WorkerEnv(name="vllm", lock="grpo_bench_gen_vllm/env.toml", inventory=_INVENTORY),
    envs=(WorkerEnv(name="vllm-cuda", lock="grpo_bench_gen_vllm/env_cuda.toml", inventory=_INVENTORY),),
    narrow="grpo_bench_gen_vllm.plan:narrow",
    describe="grpo_bench_gen_vllm.plan:describe",
    preflight="grpo_bench_gen_vllm.preflight:preflight",
    needs="grpo_bench_gen_vllm.plan:needs",
    capabilities=Capabilities(
        receives=frozenset({"safetensors", "broadcast", "hf_folder"}),
        sampling=frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
                            "frequency_penalty"}),
        refit=frozenset({"drain", "keep"}),
    ),
)

__all__ = ["VllmGeneratorConfig", "plugin"]
