"""What plans rely on, against vLLM itself: the inventory of its environment, and the constructor of its arguments."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import LossSettings, Placement, PolicyFacts, Site
from grpo_bench.registry.envs import locate
from grpo_bench_gen_vllm import VllmGeneratorConfig, plugin
from grpo_bench_gen_vllm.arguments import OWNED, engine_arguments
from grpo_bench_gen_vllm.fits import check_arguments
from grpo_bench_gen_vllm.plan import describe, narrow

pytestmark = pytest.mark.real("vllm")

BENCHMARK = VllmGeneratorConfig(
    workers=24, tensor_parallel=8, expert_parallel=True, dtype="bfloat16", sequences=512, batched_tokens=16_384,
    prefix_caching=True, kv_cache_dtype="auto", gpu_memory_utilization=0.8, cuda_graphs="full_and_piecewise",
    moe_backend="triton", performance_mode="throughput",
    engine={"async_scheduling": True, "attention_backend": "FLASH_ATTN", "all2all_backend": "allgather_reducescatter",
            "disable_custom_all_reduce": True, "gdn_prefill_backend": "triton"})
POLICY = PolicyFacts(Path("/policies/qwen"), 65_536, 248_320)

_CONSTRUCT = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
for arguments in json.load(sys.stdin):
    made = AsyncEngineArgs(**arguments)
    compilation = made.compilation_config
    print("MADE", json.dumps({
        "tensor_parallel_size": made.tensor_parallel_size, "max_model_len": made.max_model_len,
        "mode": compilation.mode and compilation.mode.name,
        "graphs": compilation.cudagraph_mode and compilation.cudagraph_mode.name, "eager": made.enforce_eager,
        "backend": made.weight_transfer_config.backend, "drafts": made.speculative_config}))
"""


@pytest.fixture(scope="module")
def python(environment_python: Any) -> str:
    return environment_python("vllm")


@pytest.fixture(scope="module")
def inventory(python: str) -> dict[str, Any]:
    assert plugin.env is not None
    return locate(plugin.env, python).inventory


def test_the_inventory_has_what_plans_read(inventory: dict[str, Any]) -> None:
    assert inventory["versions"].keys() >= {"python", "vllm", "torch", "transformers"}
    assert inventory["versions"]["vllm"] == "0.32.0"
    assert {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5MoeForCausalLM",
            "Qwen3_5MoeForConditionalGeneration"} <= set(inventory["architectures"])
    assert {"nccl", "ipc"} <= set(inventory["weight_transfer"])
    assert min(inventory["device"]["memory"]) > 2**30
    if inventory["device"]["type"] == "cpu":
        assert {32, 64, 128, 256} <= set(inventory["head_sizes"])


def test_types_and_choices_are_read_from_annotations(inventory: dict[str, Any]) -> None:
    arguments = inventory["arguments"]
    assert arguments["enable_prefix_caching"] == {"types": ["bool", "none"], "choices": None, "default": None}
    assert arguments["gpu_memory_utilization"] == {"types": ["float"], "choices": None, "default": 0.92}
    assert {"auto", "bfloat16", "fp8", "fp8_e4m3"} <= set(arguments["kv_cache_dtype"]["choices"])
    assert {"auto", "triton", "flashinfer_cutlass"} <= set(arguments["moe_backend"]["choices"])
    assert arguments["performance_mode"]["choices"] == ["balanced", "interactivity", "throughput"]
    assert arguments["tokenizer_mode"]["choices"] is None
    assert "table" in arguments["compilation_config"]["types"]
    assert "CPU_ATTN" in arguments["attention_backend"]["choices"]
    assert arguments["optimization_level"]["choices"] == [0, 1, 2, 3]


def test_every_name_that_the_plugin_speaks_of_is_an_argument(inventory: dict[str, Any]) -> None:
    assert OWNED.keys() <= inventory["arguments"].keys()
    given = engine_arguments(BENCHMARK, POLICY, backend="nccl", seed=3, device="cuda")
    check_arguments(given, inventory["arguments"], engine=BENCHMARK.engine, version="0.32.0")


def test_vllm_takes_the_arguments(python: str) -> None:
    given = [engine_arguments(config, POLICY, backend="nccl", seed=3, device="cuda")
             for config in (BENCHMARK, VllmGeneratorConfig())]
    done = subprocess.run([python, "-c", _CONSTRUCT], input=json.dumps(given), text=True, capture_output=True,
                          env={**os.environ, "HF_HUB_OFFLINE": "0", "OMP_NUM_THREADS": "1"}, check=False)
    lines = [line.removeprefix("MADE ") for line in done.stdout.splitlines() if line.startswith("MADE ")]
    assert len(lines) == 2, done.stderr[-2000:]
    common = {"max_model_len": 65_536, "backend": "nccl", "drafts": None}
    assert [json.loads(line) for line in lines] == [
        {"tensor_parallel_size": 8, "mode": "VLLM_COMPILE", "graphs": "FULL_AND_PIECEWISE", "eager": False, **common},
        {"tensor_parallel_size": 1, "mode": None, "graphs": None, "eager": True, **common}]


def test_a_plan_on_this_machine(coder_policy: Path, inventory: dict[str, Any], python: str) -> None:
    config = VllmGeneratorConfig(workers=1)
    where = Site(PolicyFacts(coder_policy, 512, 300), Placement(), python, inventory, {}, LossSettings(), False)
    facts = describe(config, where)
    assert facts["versions"] == inventory["versions"]
    assert facts["layout"] == "1 engine of 1 process: tensor parallel 1"
    cuda = inventory["device"]["type"] == "cuda"
    assert ("broadcast" in narrow(config, inventory).receives) == cuda
