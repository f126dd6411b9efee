"""Continuous batching for Qwen3-family policies in plain torch."""

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import TorchGeneratorConfig

plugin = Plugin(
    name="torch",
    role=Role.GENERATOR,
    summary="continuous batching in plain torch on CPU, for small Qwen3 and Qwen3-MoE policies",
    config=TorchGeneratorConfig,
    factory="grpo_bench_gen_torch.controller:make",
    client="grpo_bench_gen_torch.client:make",
    capabilities=Capabilities(
        receives=frozenset({"safetensors", "hf_folder"}),
        sampling=frozenset({"temperature", "top_p", "top_k", "min_p"}),
        refit=frozenset({"drain", "keep"}),
        deterministic=True,
    ),
)

__all__ = ["TorchGeneratorConfig", "plugin"]
