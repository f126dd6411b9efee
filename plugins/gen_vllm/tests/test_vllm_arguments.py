"""From settings to the arguments of vLLM's engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_bench.contract import PolicyFacts
from grpo_bench_gen_vllm import VllmGeneratorConfig
from grpo_bench_gen_vllm.arguments import OWNED, engine_arguments, over_hosts

POLICY = PolicyFacts(Path("/policies/qwen"), 65_536, 248_320)
BENCHMARK: dict[str, Any] = {"workers": 24, "tensor_parallel": 8, "expert_parallel": True, "dtype": "bfloat16",
             "batched_tokens": 16_384, "cuda_graphs": "full_and_piecewise", "moe_backend": "triton",
             "performance_mode": "throughput"}


def arguments(device: str = "cuda", **settings: Any) -> dict[str, Any]:
    return engine_arguments(VllmGeneratorConfig(**settings), POLICY, backend="ours", seed=7, device=device)


def test_the_benchmarks_settings_arrive_under_vllms_names() -> None:
    wanted = {
        "model": "/policies/qwen", "max_model_len": 65_536, "dtype": "bfloat16", "tensor_parallel_size": 8,
        "pipeline_parallel_size": 1, "enable_expert_parallel": True, "enable_chunked_prefill": True,
        "max_num_batched_tokens": 16_384, "enforce_eager": False, "moe_backend": "triton",
        "compilation_config": {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE"}, "enable_prefix_caching": True,
        "performance_mode": "throughput", "logprobs_mode": "processed_logprobs", "generation_config": "vllm",
    }
    given = arguments(**BENCHMARK)
    assert {name: given.get(name) for name in wanted} == wanted
    assert not {"speculative_config", "max_num_seqs", "kv_cache_memory_bytes"} & given.keys()


def test_nothing_is_compiled_where_graphs_are_off() -> None:
    given = arguments()
    assert given["enforce_eager"] is True
    assert "compilation_config" not in given


@pytest.mark.parametrize(("device", "gib", "wanted"), [
    ("cpu", None, 2**30), ("cuda", None, None), ("cpu", 0.5, 2**29), ("cuda", 4.0, 2**32)])
def test_a_cpu_never_takes_a_share_of_the_machine_for_its_cache(device: str, gib: float | None,
                                                                wanted: int | None) -> None:
    assert arguments(device, kv_cache_gib=gib).get("kv_cache_memory_bytes") == wanted


def test_one_process_needs_no_executor_of_its_own() -> None:
    assert arguments()["distributed_executor_backend"] == "uni"
    assert arguments(tensor_parallel=2)["distributed_executor_backend"] == "mp"


def test_hosts_of_an_engine_meet_at_the_first() -> None:
    assert over_hosts(2, 1, "10.0.0.7:4000") == {"nnodes": 2, "node_rank": 1, "master_addr": "10.0.0.7",
                                                "master_port": 4000}
    assert over_hosts(3, 0, "fd00::7:4000")["master_addr"] == "fd00::7"
    assert over_hosts(2, 1, "h:1").keys() <= OWNED.keys()


def test_further_arguments_go_through_unchanged() -> None:
    given = arguments(engine={"block_size": 64, "disable_log_stats": False})
    assert (given["block_size"], given["disable_log_stats"]) == (64, False)


def test_what_the_plugin_sets_is_refused_in_the_table_with_its_key() -> None:
    with pytest.raises(ValidationError, match=r"max_model_len is not for this table: set policy\.max_context"):
        VllmGeneratorConfig(engine={"block_size": 64, "max_model_len": 9})


def test_everything_that_is_set_is_owned_or_meant_to_be_overridden() -> None:
    overridable = {"disable_log_stats", "enable_log_requests", "use_tqdm_on_load", "load_format"}
    given = arguments(**BENCHMARK, sequences=4, kv_cache_gib=1)
    assert given.keys() - OWNED.keys() == overridable


def test_owned_names_point_to_keys_that_exist() -> None:
    keys = {hint.removeprefix("set ").partition(":")[0] for hint in OWNED.values() if hint.startswith("set ")}
    elsewhere = {"policy.checkpoint", "policy.max_context", "refit.transport", "the run's seed"}
    assert keys - elsewhere <= VllmGeneratorConfig.model_fields.keys()


@pytest.mark.parametrize(("settings", "message"), [
    ({"sequences": 4096}, "batched_tokens = 2048 is below sequences = 4096"),
    ({"expert_parallel": True}, "of which there is 1"),
    ({"tensor_paralel": 2}, "Extra inputs"),
    ({"cuda_graphs": "on"}, "full_and_piecewise"),
])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        VllmGeneratorConfig(**settings)
