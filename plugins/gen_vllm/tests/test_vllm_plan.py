"""What a plan says of engines, and what it refuses, from inventories as they were seen on three kinds of machine."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import LossSettings, Missing, Need, Placement, PlanError, PolicyFacts, Site
from grpo_bench_gen_vllm import VllmGeneratorConfig, plugin
from grpo_bench_gen_vllm.arguments import engine_arguments
from grpo_bench_gen_vllm.plan import describe, narrow, needs

GIB = 2**30
_TYPES = {bool: "bool", int: "int", str: "str", float: "float", dict: "table"}
_POLICY = PolicyFacts(Path("/p"), 64, 64)


def _argument(value: Any) -> dict[str, Any]:
    return {"types": ["none", _TYPES[type(value)]], "choices": None, "default": None}


ARGUMENTS = {name: _argument(value) for name, value in engine_arguments(
    VllmGeneratorConfig(sequences=1, kv_cache_gib=1, cuda_graphs="full"), _POLICY, backend="", seed=0,
    device="cuda").items()} | {
    "kv_cache_dtype": {"types": ["str"], "choices": ["auto", "fp8", "fp8_e4m3", "bfloat16"], "default": "auto"},
    "moe_backend": {"types": ["str"], "choices": ["auto", "triton", "cutlass"], "default": "auto"},
    "async_scheduling": {"types": ["bool", "none"], "choices": None, "default": None},
    "block_size": {"types": ["int", "none"], "choices": None, "default": None},
    "cpu_offload_gb": {"types": ["float"], "choices": None, "default": 0},
    "attention_backend": {"types": ["none", "str"], "choices": ["FLASH_ATTN", "CPU_ATTN"], "default": None},
    "scheduler_cls": {"types": ["none", "other", "str"], "choices": None, "default": None},
}
COMMON = {"versions": {"vllm": "0.32.0", "torch": "2.13.0"}, "arguments": ARGUMENTS, "weight_transfer": ["nccl"],
          "architectures": ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Qwen3_5MoeForCausalLM",
                            "Qwen3_5MoeForConditionalGeneration"]}
CPU = {**COMMON, "device": {"type": "cpu", "names": ["x86_64"], "memory": [16 * GIB], "avx512": True},
       "head_sizes": [32, 64, 80, 128, 256]}
OLD_CPU = {**CPU, "device": {**CPU["device"], "avx512": False}}
GPUS = {**COMMON, "device": {"type": "cuda", "names": ["NVIDIA GB300"] * 4, "memory": [288 * GIB] * 4},
        "head_sizes": None}

DENSE = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 8,
         "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 256, "max_position_embeddings": 4096}
EXPERTS = {**DENSE, "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "moe_intermediate_size": 96}
MIXED = {"num_hidden_layers": 60, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 2,
         "head_dim": 256, "num_experts": 512, "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024,
         "linear_num_key_heads": 16, "linear_num_value_heads": 64, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "max_position_embeddings": 262_144,
         "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15}
BENCHMARK: dict[str, Any] = {"workers": 24, "tensor_parallel": 8, "expert_parallel": True, "dtype": "bfloat16",
             "batched_tokens": 16_384, "cuda_graphs": "full_and_piecewise", "moe_backend": "triton",
             "performance_mode": "throughput"}


def write(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> Path:
    """A checkpoint of headers only: what a plan reads."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header = json.dumps({name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]}
                         for name, shape in tensors.items()} | {"__metadata__": {"format": "pt"}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    return folder


def site(folder: Path, inventory: Mapping[str, Any], context: int = 512, **placement: Any) -> Site:
    return Site(PolicyFacts(folder, context, 1000), Placement(**{"workers": 2, **placement}), "/env/python", inventory,
                {}, LossSettings(), False)


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    return write(tmp_path / "dense", DENSE, {
        "model.embed_tokens.weight": (1000, 128), "model.layers.0.self_attn.k_proj.weight": (64, 128),
        "model.layers.0.self_attn.q_proj.weight": (256, 128), "model.norm.weight": (128,)})


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    return write(tmp_path / "experts", EXPERTS, {"model.layers.0.mlp.experts.0.up_proj.weight": (96, 128)})


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """The benchmark's policy in shapes: 60 layers, every fourth with full attention."""
    tensors: dict[str, tuple[int, ...]] = {"model.language_model.embed_tokens.weight": (248_320, 4096),
                                           "lm_head.weight": (248_320, 4096), "model.visual.blocks.0.w": (4096, 4096),
                                           "mtp.layers.0.mlp.experts.gate_up_proj": (512, 2048, 4096)}
    for layer in range(60):
        prefix = f"model.language_model.layers.{layer}."
        tensors |= {f"{prefix}mlp.experts.gate_up_proj": (512, 2048, 4096), f"{prefix}mlp.experts.down_proj":
                    (512, 4096, 1024), f"{prefix}mlp.gate.weight": (512, 4096)}
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": MIXED}
    return write(tmp_path / "mixed", config, tensors)


def refusal(settings: dict[str, Any], where: Site) -> str:
    with pytest.raises(PlanError) as caught:
        describe(VllmGeneratorConfig(**settings), where)
    return str(caught.value)


def test_facts_of_engines_on_a_cpu(dense: Path) -> None:
    facts = describe(VllmGeneratorConfig(tensor_parallel=4, kv_cache_gib=0.5), site(dense, CPU))
    assert facts["layout"] == "2 engines of 4 processes: tensor parallel 4"
    assert facts["versions"]["vllm"] == "0.32.0"
    assert facts["interpreter"] == "/env/python"
    weights = 4 * (1000 * 128 / 4 + 64 * 128 / 2 + 256 * 128 / 4 + 128) / 2**20
    token = 2 * 2 * 1 * 32 * 4
    assert facts["memory_per_rank"] == {
        "weights": f"{weights:.1f} MiB",
        "kv_cache": f"512 MiB: {2**29 // token:,} tokens, {2**29 // token // 512:,} sequences of 512",
        "refit": f"{4 * (128_000 + 128_000 / 4) / 2**20:.1f} MiB", "at most": f"{512 + weights:,.0f} MiB"}
    assert facts["not_possible"].keys() == {"cuda_graphs", "moe_backend", "expert_parallel"}


def test_facts_of_the_benchmarks_layout(mixed: Path) -> None:
    facts = describe(VllmGeneratorConfig(**BENCHMARK), site(mixed, GPUS, 65_536, nodes=("a", "b")))
    assert facts["layout"] == "24 engines of 8 processes: tensor parallel 8, expert parallel 8"
    assert (facts["tensor_parallelism"], facts["expert_parallelism"], facts["pipeline_parallelism"]) == (8, 8, 1)
    assert facts["not_possible"] == {}
    expert = 60 * 512 * 3 * 1024 * 4096 * 2 / 8
    shown = float(facts["memory_per_rank"]["weights"].removesuffix(" MiB").replace(",", "")) * 2**20
    assert expert < shown < expert * 1.02
    assert "sequences of 65,536" in facts["memory_per_rank"]["kv_cache"]


def test_an_engine_needs_a_gpu_for_each_process() -> None:
    assert needs(VllmGeneratorConfig(**BENCHMARK)) == Need(24, 8)
    assert needs(VllmGeneratorConfig()) == Need(0, 1)


def test_engines_over_several_hosts_say_so(mixed: Path) -> None:
    hosts = tuple(f"n{number}" for number in range(48))
    facts = describe(VllmGeneratorConfig(**BENCHMARK), site(mixed, GPUS, 65_536, workers=24, nodes=hosts, gpus=8))
    assert facts["layout"].endswith("expert parallel 8, each on 2 hosts")


@pytest.mark.parametrize(("inventory", "ranks", "hosts", "gpus", "message"), [
    (GPUS, 8, 3, 8, "tensor_parallel = 8: an engine's processes do not go evenly over 3 hosts"),
    (GPUS, 8, 2, 4, "an engine over 2 hosts has 8 processes and 4 GPUs of its own"),
    (GPUS, 8, 2, 0, "an engine over 2 hosts has 8 processes and 0 GPUs of its own"),
    (CPU, 4, 2, 4, "an engine of 4 processes over 2 hosts: on CPUs vLLM gives a host one of them"),
])
def test_engines_that_vllm_cannot_spread_over_hosts_are_refused(
        dense: Path, inventory: Mapping[str, Any], ranks: int, hosts: int, gpus: int, message: str) -> None:
    nodes = tuple(f"n{number}" for number in range(2 * hosts))
    assert message in refusal({"tensor_parallel": ranks}, site(dense, inventory, nodes=nodes, gpus=gpus))
    describe(VllmGeneratorConfig(tensor_parallel=2), site(dense, CPU, nodes=("a", "b", "c", "d")))


def away(tensors: Mapping[str, tuple[int, ...]], **machine: Any) -> Site:
    """No checkpoint, no environment: what a profile says of the policy, and hosts of a machine."""
    policy = PolicyFacts(Path("away"), 512, 0, config=DENSE, tensors=tensors)
    return replace(site(Path("away"), {}, nodes=("a", "b")), policy=policy, machine={"gpus": 4, **machine})


def test_without_checkpoint_and_environment_layout_and_memory_are_known() -> None:
    tensors = {"model.embed_tokens.weight": (1000, 128), "model.norm.weight": (128,)}
    facts = describe(VllmGeneratorConfig(tensor_parallel=4), away(tensors, gpu_memory_bytes=GIB))
    assert facts["layout"] == "2 engines of 4 processes: tensor parallel 4"
    assert facts["memory_bytes"] == int(0.9 * GIB) and facts["memory_assumed"]
    assert not {"versions", "device", "not_possible"} & facts.keys()
    assert "memory_bytes" not in describe(VllmGeneratorConfig(), away(tensors))
    with pytest.raises(PlanError, match="does not divide the policy's 8 attention heads"):
        describe(VllmGeneratorConfig(tensor_parallel=3), away(tensors))
    unknown = replace(away(tensors, gpu_memory_bytes=GIB), policy=PolicyFacts(Path("away"), 512, 0))
    assert "memory_bytes" not in describe(VllmGeneratorConfig(), unknown)


def test_new_weights_need_room_beside_the_old_ones(mixed: Path) -> None:
    """Experts that are stored as one tensor of 8 GiB, and a 16th of a layer of 12 GiB, beside 90 % of 74.5 GiB."""
    where = site(mixed, {**GPUS, "device": {**GPUS["device"], "memory": [80 * 10**9] * 16}}, 65_536)
    settings: dict[str, Any] = {**BENCHMARK, "workers": 1, "kv_cache_gib": 2.0, "tensor_parallel": 16}
    need = 8.0 + 12 / 16 + 512 * 4096 * 2 / GIB
    found = describe(VllmGeneratorConfig(**settings), where)["memory_per_rank"]["refit"]
    assert float(found.removesuffix(" MiB").replace(",", "")) / 1024 == pytest.approx(need, abs=0.01)
    full = {key: value for key, value in settings.items() if key != "kv_cache_gib"}
    with pytest.raises(Missing, match=r"a refit needs 8,9\d\d MiB beside weights and cache, which leave 7,629 MiB of"):
        describe(VllmGeneratorConfig(**full), where)
    describe(VllmGeneratorConfig(**full, gpu_memory_utilization=0.85), where)


@pytest.mark.parametrize(("settings", "memory", "message"), [
    ({}, 2**28, "a process has weights of 512 MiB, and gpu_memory_utilization = 0.9 lets it take 230 MiB of its GPU's"),
    ({"kv_cache_gib": 1.0}, GIB, "a process takes 1,536 MiB for weights and caches; its GPU has 1,024 MiB"),
    ({"kv_cache_gib": 1e-5}, GIB, "cannot hold one sequence of 512 tokens"),
])
def test_what_does_not_fit_the_planned_gpus_fits_nowhere(settings: dict[str, Any], memory: int, message: str) -> None:
    where = away({"lm_head.weight": (2**20, 128)}, gpu_memory_bytes=memory)
    with pytest.raises(PlanError, match=message) as caught:
        describe(VllmGeneratorConfig(**settings), where)
    assert not isinstance(caught.value, Missing)
    with pytest.raises(PlanError, match=message):
        describe(VllmGeneratorConfig(**settings), replace(where, inventory=CPU))


def test_weights_are_broadcast_between_gpus_only() -> None:
    here = narrow(VllmGeneratorConfig(), CPU)
    assert here.receives == plugin.capabilities.receives - {"broadcast"}
    assert "no CUDA device" in here.lacking["broadcast"]
    assert narrow(VllmGeneratorConfig(), GPUS) == plugin.capabilities


@pytest.mark.parametrize(("engine", "message"), [
    ({"async_schedulin": True}, "engine.async_schedulin: vLLM 0.32.0 has no engine argument 'async_schedulin' "
                                "(nearest: async_scheduling"),
    ({"zzz": 1}, "engine.zzz: vLLM 0.32.0 has no engine argument 'zzz' (leave it out)"),
    ({"async_scheduling": "yes"}, "engine.async_scheduling = 'yes' is not possible with vLLM 0.32.0: it takes true or "
                                  "false"),
    ({"block_size": 1.5}, "it takes a whole number"),
    ({"block_size": True}, "it takes a whole number"),
    ({"cpu_offload_gb": "4"}, "it takes a number"),
    ({"attention_backend": "CPU_ATN"}, "it takes CPU_ATTN"),
])
def test_arguments_that_vllm_does_not_take_are_refused_by_name(dense: Path, engine: dict[str, Any],
                                                               message: str) -> None:
    assert message in refusal({"engine": engine}, site(dense, CPU))


def test_whole_numbers_and_classes_pass_where_vllm_takes_them(dense: Path) -> None:
    describe(VllmGeneratorConfig(engine={"cpu_offload_gb": 4, "scheduler_cls": "a.B"}), site(dense, CPU))


@pytest.mark.parametrize(("settings", "message"), [
    ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype = 'fp9' is not possible with vLLM 0.32.0: it takes fp8"),
    ({"moe_backend": "triton"}, 'moe_backend = "triton" is not possible here: there is no CUDA device'),
    ({"cuda_graphs": "full"}, 'set cuda_graphs = "off"'),
    ({"tensor_parallel": 3}, "does not divide the policy's 8 attention heads (possible here: 1, 2, 4, 8)"),
    ({"tensor_parallel": 2, "expert_parallel": True}, "has no experts"),
    ({"kv_cache_gib": 0.0001}, "cannot hold one sequence of 512 tokens"),
    ({"kv_cache_gib": 9}, "2 engines of 1 process take 18,433 MiB"),
    ({"workers": 17}, "this machine has 16,384 MiB"),
])
def test_what_cannot_run_on_a_cpu_is_refused(dense: Path, settings: dict[str, Any], message: str) -> None:
    assert message in refusal(settings, site(dense, CPU))


def test_all_that_the_machine_lacks_is_said_at_once(dense: Path) -> None:
    config = VllmGeneratorConfig(**BENCHMARK)
    bare = site(dense, CPU)
    unknown = replace(bare, policy=PolicyFacts(dense / "nowhere", 512, 0))
    with pytest.raises(Missing) as caught:
        describe(config, unknown)
    gpus, graphs, moe, experts = caught.value.items
    assert gpus.startswith("24 engines of 8 processes take 192 GPUs; this machine has none")
    assert 'cuda_graphs = "full_and_piecewise"' in graphs and "moe_backend" in moe and "expert_parallel" in experts
    for machine, has in ({}, "none"), ({"gpus": 4}, "4"):
        with pytest.raises(Missing, match=f"take 192 GPUs; this machine has {has}"):
            describe(config, replace(unknown, inventory={}, machine=machine))


def test_a_vllm_without_its_devices_runs_nothing(dense: Path) -> None:
    nowhere = {**CPU, "device": {**CPU["device"], "type": "none"}, "head_sizes": None}
    assert "a vLLM for devices that this machine does not have" in refusal({}, site(dense, nowhere))
    assert "broadcast" in narrow(VllmGeneratorConfig(), nowhere).lacking


def test_a_cache_in_fp8_needs_avx_512_on_a_cpu(dense: Path) -> None:
    settings: dict[str, Any] = {"kv_cache_dtype": "fp8"}
    assert 'kv_cache_dtype = "fp8" is not possible here: the CPU has no AVX-512' in refusal(settings,
                                                                                            site(dense, OLD_CPU))
    facts = describe(VllmGeneratorConfig(**settings), site(dense, CPU))
    whole = describe(VllmGeneratorConfig(), site(dense, CPU))
    tokens, four = (int(item["memory_per_rank"]["kv_cache"].split()[2].replace(",", "")) for item in (facts, whole))
    assert tokens == 4 * four


def test_heads_that_the_cpu_does_not_know(tmp_path: Path) -> None:
    folder = write(tmp_path, {**DENSE, "head_dim": 16}, {})
    assert "no CPU kernel for attention heads of 16 (it has: 32, 64" in refusal({}, site(folder, CPU))
    describe(VllmGeneratorConfig(), site(folder, GPUS))


def test_heads_of_keys_that_do_not_spread(tmp_path: Path) -> None:
    folder = write(tmp_path, {**DENSE, "num_attention_heads": 24, "num_key_value_heads": 6}, {})
    message = refusal({"tensor_parallel": 8}, site(folder, CPU))
    assert "neither divides the policy's 6 heads of keys and values nor is a multiple of them" in message
    assert "(possible here: 1, 2)" in message


def test_experts_are_sliced_or_shared_out(experts: Path) -> None:
    write(experts, {**EXPERTS, "moe_intermediate_size": 100}, {})
    where = site(experts, GPUS, nodes=("a", "b"))
    assert "does not divide the policy's 100 inner dimensions of an expert (possible here: 1, 2, 4)" in refusal(
        {"tensor_parallel": 8}, where)
    describe(VllmGeneratorConfig(tensor_parallel=8, expert_parallel=True), where)
    assert "expert_parallel = true is not possible here" in refusal(
        {"tensor_parallel": 8, "expert_parallel": True}, site(experts, CPU))


def test_linear_attention_on_a_cpu_is_bfloat16_with_heads_of_128(mixed: Path, tmp_path: Path) -> None:
    assert 'dtype = "float32" is not possible here: on a CPU' in refusal({}, site(mixed, CPU))
    narrower = write(tmp_path / "narrow", {"architectures": ["Qwen3_5MoeForCausalLM"], **MIXED,
                                           "linear_key_head_dim": 64}, {})
    assert "linear_key_head_dim is 64" in refusal({"dtype": "bfloat16"}, site(narrower, CPU))


def test_an_architecture_that_vllm_does_not_know(tmp_path: Path) -> None:
    folder = write(tmp_path, {**DENSE, "architectures": ["Qwen3Moe5ForCausalLM"]}, {})
    message = refusal({}, site(folder, CPU))
    assert "knows no architecture 'Qwen3Moe5ForCausalLM'" in message
    assert "Qwen3MoeForCausalLM" in message


def test_more_context_than_positions(dense: Path) -> None:
    assert "policy.max_context = 5000 is above the 4096 positions" in refusal({}, site(dense, CPU, 5000))


def test_gpus_are_counted_on_one_machine_only(dense: Path) -> None:
    settings: dict[str, Any] = {"workers": 3, "tensor_parallel": 2}
    assert "3 engines of 2 processes take 6 GPUs; this machine has 4" in refusal(settings, site(dense, GPUS))
    describe(VllmGeneratorConfig(**settings), site(dense, GPUS, nodes=("a", "b")))


def test_weights_that_fill_a_gpu_leave_no_cache(mixed: Path) -> None:
    small = {**GPUS, "device": {**GPUS["device"], "memory": [80 * GIB] * 4}}
    assert "gpu_memory_utilization = 0.9 lets it take 73,728 MiB of its GPU's 81,920 MiB" in refusal(
        BENCHMARK, site(mixed, small, 65_536, nodes=("a",)))


@pytest.mark.parametrize(("name", "content", "message"), [
    ("config.json", "{", "config.json cannot be read"),
    ("config.json", "{}", "config.json does not say what an engine must know"),
    ("model.safetensors", "\xff" * 16, "is no safetensors file"),
])
def test_a_broken_checkpoint_is_named(dense: Path, name: str, content: str, message: str) -> None:
    (dense / name).write_text(content, "latin-1")
    assert message in refusal({}, site(dense, CPU))


def test_tensors_of_all_files_are_counted(dense: Path) -> None:
    one = describe(VllmGeneratorConfig(), site(dense, CPU))["memory_per_rank"]["weights"]
    other = write(dense.parent / "other", DENSE, {"lm_head.weight": (1000, 128)})
    (dense / "model.safetensors").rename(dense / "a.safetensors")
    (other / "model.safetensors").rename(dense / "b.safetensors")
    (dense / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}))
    both = describe(VllmGeneratorConfig(), site(dense, CPU))["memory_per_rank"]["weights"]
    assert float(both.split()[0]) == pytest.approx(float(one.split()[0]) + 4 * 128_000 / 2**20, abs=0.11)


def test_the_placement_says_how_many_engines_where_the_settings_do_not(dense: Path) -> None:
    where = replace(site(dense, CPU), placement=Placement(workers=1))
    assert describe(VllmGeneratorConfig(), where)["layout"].startswith("1 engine of 1 process:")
