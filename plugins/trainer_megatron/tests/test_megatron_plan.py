"""What a plan says of the trainer, and what it refuses. No torch, no Megatron: inventories are written out here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from grpo_bench.contract import (
    KLSettings, LossSettings, Placement, Missing, PlanError, PolicyFacts, Purpose, SamplingSettings, Site,
)
from grpo_bench_trainer_megatron import MegatronTrainerConfig, plugin
from grpo_bench_trainer_megatron.groups import needs
from grpo_bench_trainer_megatron.memory import memory_of
from grpo_bench_trainer_megatron.model import shape_of
from grpo_bench_trainer_megatron.plan import describe, narrow

MOE = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 4, "num_attention_heads": 4,
       "num_key_value_heads": 2, "num_experts": 8, "moe_intermediate_size": 32, "tie_word_embeddings": False}
DELTA = {**MOE, "architectures": ["Qwen3_5MoeForCausalLM"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
         "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
GIB = 2**30


def head_only(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> Path:
    """A checkpoint without its data: plans read the heads only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    entries, at = {}, 0
    for name, shape in tensors.items():
        stop = at + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    head = json.dumps(entries).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    return folder


def small(config: Mapping[str, Any] = MOE) -> dict[str, tuple[int, ...]]:
    """Names and shapes of four layers of width 64 with eight experts."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 64), "model.norm.weight": (64,),
                                         "lm_head.weight": (256, 64)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        found |= {prefix + "self_attn.q_proj.weight": (64, 64), prefix + "mlp.gate.weight": (8, 64)}
        for expert in range(8):
            found[f"{prefix}mlp.experts.{expert}.up_proj.weight"] = (32, 64)
    return found


def inventory(device: str = "cpu", *, count: int = 1, memory: int = 16 * GIB, **features: bool) -> dict[str, Any]:
    names = ("transformer_engine", "apex", "deep_ep", "flash_attention", "flash_linear_attention")
    return {
        "versions": {"python": "3.11.7", "megatron-core": "0.19.2", "megatron-bridge": "0.6.2", "torch": "2.13.0"},
        "device": {"type": device, "names": ["H100"] * count if device == "cuda" else ["x86_64"],
                   "memory": [memory] * (count if device == "cuda" else 1)},
        "features": {name: features.get(name, False) for name in names},
        "fields": {"model": {"moe_router_fusion": {}, "params_dtype": {}, "fp8": {}, "rotary_base": {}},
                   "optimizer": {"exp_avg_dtype": {}, "min_loss_scale": {}, "optimizer_cpu_offload": {}},
                   "ddp": {"bucket_size": {}}},
        "architectures": ["Qwen3MoeForCausalLM", "Qwen3_5MoeForCausalLM"],
    }


def gpus(count: int = 8, **features: bool) -> dict[str, Any]:
    everything = dict.fromkeys(("transformer_engine", "apex", "deep_ep", "flash_attention", "flash_linear_attention"),
                               True)
    return inventory("cuda", count=count, memory=80 * GIB, **{**everything, **features})


def site_of(folder: Path, found: Mapping[str, Any], *, workers: int = 1, nodes: tuple[str, ...] = (),
            penalty: float = 0.0) -> Site:
    sampling = SamplingSettings(max_tokens=64)
    return Site(policy=PolicyFacts(folder, 128, 256), placement=Placement(workers=workers, nodes=nodes),
                interpreter="/envs/megatron/bin/python", inventory=found,
                sampling={Purpose.TRAIN: sampling, Purpose.VALIDATION: sampling},
                loss=LossSettings(kl=KLSettings(penalty=penalty)), deterministic=False)


def refusal(folder: Path, found: Mapping[str, Any], config: Mapping[str, Any] = MOE, **settings: Any) -> str:
    site = site_of(head_only(folder, config, small(config)), found)
    with pytest.raises(PlanError) as caught:
        describe(MegatronTrainerConfig(**settings), site)
    return str(caught.value)


def test_facts_name_versions_layout_and_memory(tmp_path: Path) -> None:
    config = MegatronTrainerConfig(tensor_parallel=2, expert_parallel=2, workers=4, learning_rate=2e-6)
    facts = describe(config, site_of(head_only(tmp_path, MOE, small()), inventory()))
    assert facts["versions"]["megatron-core"] == "0.19.2"
    assert facts["interpreter"] == "/envs/megatron/bin/python"
    assert facts["layout"] == ("4 ranks: tensor parallel 2, expert parallel 2, data parallel 2, sequence parallel")
    assert facts["memory_per_rank"].keys() == {"weights", "gradients", "optimizer", "activations", "refit", "at most"}
    assert facts["opt_base_learning_rate"] == facts["opt_end_learning_rate"] == 2e-6
    assert facts["tensor_parallelism"] == 2
    assert facts["lowest_numerical_precision_in_linear"] == "fp32"
    assert facts["not_possible"]["context_parallel"] == "no CUDA device"
    json.dumps(dict(facts))


def test_ranks_default_to_one_replica() -> None:
    assert MegatronTrainerConfig().workers == 1
    assert MegatronTrainerConfig(tensor_parallel=4, pipeline_parallel=2, expert_parallel=32).workers == 64
    assert MegatronTrainerConfig(tensor_parallel=2, expert_parallel=2).workers == 2


def test_memory_is_that_of_the_layout(tmp_path: Path) -> None:
    shape = shape_of(head_only(tmp_path, MOE, small()))
    dense, experts, router = 2 * 256 * 64 + 64 + 4 * 64 * 64, 4 * 8 * 32 * 64, 4 * 8 * 64
    assert shape.parameters == dense + experts + router
    one = memory_of(MegatronTrainerConfig(), shape, reference=True)
    assert one.weights == one.reference == 4 * shape.parameters
    assert one.gradients == 4 * (dense + experts)
    assert one.optimizer == 8 * (dense + experts)
    spread = memory_of(MegatronTrainerConfig(expert_parallel=2, workers=2), shape, reference=False)
    assert spread.weights == 4 * (dense + router + experts // 2)
    assert spread.optimizer == 8 * (dense // 2 + experts // 2)
    halves = memory_of(MegatronTrainerConfig(pipeline_parallel=2, precision="bfloat16"), shape, reference=False)
    first = 256 * 64 + (4 * 64 * 64 + experts) // 2
    assert halves.weights == 2 * (first + router // 2)
    assert halves.optimizer == 12 * first
    aware = MegatronTrainerConfig(pipeline_parallel=2, precision="bfloat16", precision_aware_optimizer=True,
                                  optimizer={"exp_avg_dtype": "bfloat16", "exp_avg_sq_dtype": "bfloat16"})
    assert memory_of(aware, shape, reference=False).optimizer == 6 * first


def test_activations_are_what_matrices_take_in_and_give_out(tmp_path: Path) -> None:
    config = {**MOE, "hidden_size": 64, "vocab_size": 256, "num_experts_per_tok": 2}
    shape = shape_of(head_only(tmp_path, config, small()))
    layer = 2 * 64 + (8 + 64) + 2 * (32 + 64)
    logits = 1024 * 256 * (4 + 2 * 4)

    def of(**settings: Any) -> int:
        return memory_of(MegatronTrainerConfig(**settings), shape, reference=False).activations

    assert of() == 1024 * 4 * 4 * layer + logits
    assert of(batch_tokens=512) == of() // 2
    assert of(tensor_parallel=4) == of() // 4
    assert of(recompute="full") == 1024 * 4 * (4 * 64 + layer) + logits
    assert of(recompute="full", recompute_layers=2) == 1024 * 4 * (4 * 32 + 2 * layer) + logits
    moe = (8 + 64) + 2 * (32 + 64)
    assert of(recompute="selective", recompute_modules=("moe",)) == 1024 * 4 * (4 * (2 * 64 + 64) + moe) + logits
    assert of(recompute="selective", recompute_modules=("core_attn",)) == of()
    assert of(pipeline_parallel=2) == 1024 * 4 * 2 * 2 * layer
    long = memory_of(MegatronTrainerConfig(), shape, reference=False, context=4096)
    assert long.activations == 4 * of()


def test_a_refit_takes_the_largest_tensor_twice_and_turns_with_activations(tmp_path: Path) -> None:
    memory = memory_of(MegatronTrainerConfig(), shape_of(head_only(tmp_path, MOE, small())), reference=False)
    assert memory.refit == 2 * 4 * 256 * 64
    assert memory.total == memory.weights + memory.gradients + memory.optimizer + max(memory.activations, memory.refit)


def test_ranks_are_grouped_as_megatron_numbers_them() -> None:
    config = MegatronTrainerConfig(tensor_parallel=2, pipeline_parallel=2, expert_parallel=4, workers=16)
    need = needs(config)
    assert (need.workers, need.gpus) == (16, 1)
    assert need.groups["tensor"][:2] == ((0, 1), (2, 3))
    assert need.groups["data"][:2] == ((0, 2, 4, 6), (1, 3, 5, 7)) and need.groups["data"][2][0] == 8
    assert need.groups["pipeline"][0] == (0, 8) and len(need.groups["pipeline"]) == 8
    assert need.groups["expert"] == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12, 13, 14, 15))
    assert "context" not in need.groups
    crossed = needs(MegatronTrainerConfig(tensor_parallel=2, context_parallel=2, workers=8))
    assert crossed.groups["context"] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert crossed.groups["data"] == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert needs(MegatronTrainerConfig()).groups == {}
    assert needs(MegatronTrainerConfig(tensor_parallel=2, workers=3)).groups == {}


def away(config: Mapping[str, Any] = MOE, **machine: Any) -> Site:
    """No checkpoint, no environment: what a profile says of the policy, and eight hosts of a machine."""
    policy = PolicyFacts(Path("away"), 128, 0, config=config, tensors=small(config))
    return replace(site_of(Path("away"), {}, nodes=tuple(f"n{number}" for number in range(8))), policy=policy,
                   machine={"gpus": 4, **machine})


def test_without_checkpoint_and_environment_layout_and_memory_are_known() -> None:
    facts = describe(MegatronTrainerConfig(tensor_parallel=4, dispatcher="flex"), away(gpu_memory_bytes=2**36))
    assert facts["layout"].startswith("4 ranks: tensor parallel 4")
    assert facts["memory_per_rank"].keys() >= {"weights", "activations", "at most"}
    assert facts["memory_bytes"] > 0 and facts["memory_assumed"] and facts["weights_bytes"] > 0
    assert not {"versions", "device", "not_possible"} & facts.keys()
    with pytest.raises(PlanError, match="4 attention heads cannot be divided by tensor_parallel = 8"):
        describe(MegatronTrainerConfig(tensor_parallel=8), away())


def test_what_does_not_fit_the_planned_gpus_fits_nowhere_and_is_told_in_parts() -> None:
    with pytest.raises(PlanError, match=r"a rank needs .* and has 1.0 MiB: weights .*, gradients .*") as caught:
        describe(MegatronTrainerConfig(), away(gpu_memory_bytes=2**20))
    assert not isinstance(caught.value, Missing)
    with pytest.raises(Missing, match="64 ranks need a GPU each; here 8 machines have 4"):
        describe(MegatronTrainerConfig(workers=64, attention="flash"), away())


def test_nothing_but_the_layout_is_known_of_an_unknown_policy() -> None:
    facts = describe(MegatronTrainerConfig(), replace(away(), policy=PolicyFacts(Path("away"), 128, 0)))
    assert facts["ranks"] == 1 and "parameters" not in facts


def test_a_policy_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = {**small(), "model.layers.0.mlp.experts.0.down_proj.weight": (2**18, 2**18)}
    with pytest.raises(PlanError, match="spread the policy over more ranks"):
        describe(MegatronTrainerConfig(), site_of(head_only(tmp_path, MOE, tensors), inventory()))


@pytest.mark.parametrize(("settings", "words"), [
    ({"workers": 3, "tensor_parallel": 2}, "trainer.workers = 3 cannot be divided by tensor x pipeline"),
    ({"workers": 6, "expert_parallel": 4}, "trainer.workers = 6 cannot be divided by expert x expert tensor"),
    ({"tensor_parallel": 8}, "4 attention heads cannot be divided by tensor_parallel = 8"),
    ({"pipeline_parallel": 3}, "4 layers cannot be divided by pipeline_parallel x virtual_pipeline = 3"),
    ({"expert_parallel": 3}, "8 experts cannot be divided by expert_parallel = 3"),
    ({"expert_tensor_parallel": 5}, "width 32 of an expert"),
    ({"tensor_parallel": 2, "sequence_parallel": False}, "needs sequence parallelism"),
    ({"sequence_parallel": True}, "sequence_parallel does nothing"),
    ({"pipeline_parallel": 2, "dispatcher": "allgather"}, "cannot pass sequences of varying length"),
])
def test_layouts_that_do_not_divide_are_refused(tmp_path: Path, settings: Mapping[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, inventory(), **settings)


def test_ranks_wait_for_longer_than_a_refit_may_take(tmp_path: Path) -> None:
    assert "is not above limits.refit_s = 600" in refusal(tmp_path, inventory(), workers=2, collective_s=600.0)


def test_key_value_heads_may_be_fewer_than_ranks_but_must_fit(tmp_path: Path) -> None:
    folder = head_only(tmp_path / "few", MOE, small())
    assert describe(MegatronTrainerConfig(tensor_parallel=4), site_of(folder, inventory()))["ranks"] == 4
    odd = {**MOE, "num_attention_heads": 12, "num_key_value_heads": 3}
    assert "3 key-value heads" in refusal(tmp_path / "odd", inventory(), odd, tensor_parallel=2)
    assert "2 heads of linear attention" in refusal(tmp_path / "delta", inventory(), DELTA, tensor_parallel=4,
                                                    packing=False)


@pytest.mark.parametrize(("settings", "words"), [
    ({"context_parallel": 2}, "trainer.context_parallel needs Transformer Engine on a GPU, but the environment has no"),
    ({"transformer_engine": True}, "trainer.transformer_engine needs"),
    ({"grouped_gemm": True}, "trainer.grouped_gemm needs"),
    ({"fusions": True}, "trainer.fusions needs"),
    ({"attention": "flash"}, "trainer.attention needs"),
    ({"precision": "bfloat16", "precision_aware_optimizer": True}, "trainer.precision_aware_optimizer needs"),
    ({"pipeline_parallel": 2, "virtual_pipeline": 2}, "trainer.virtual_pipeline needs GPUs"),
    ({"dispatcher": "flex"}, "\"flex\" with hybridep needs it on a GPU, but the environment has no CUDA device"),
])
def test_what_needs_a_gpu_is_refused_without_one(tmp_path: Path, settings: Mapping[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, inventory(), **settings)
    folder = head_only(tmp_path, MOE, small())
    assert describe(MegatronTrainerConfig(**settings), site_of(folder, gpus()))["not_possible"] == {}


def test_what_a_gpu_environment_lacks_is_named(tmp_path: Path) -> None:
    assert "no Transformer Engine" in refusal(tmp_path, gpus(transformer_engine=False), grouped_gemm=True)
    assert "no module deep_ep" in refusal(tmp_path, gpus(deep_ep=False), dispatcher="flex", flex_sms=32)
    assert "a kernel of Apex" in refusal(tmp_path, gpus(apex=False), fusions=True)
    bare = describe(MegatronTrainerConfig(), site_of(head_only(tmp_path, MOE, small()), gpus(apex=False)))
    assert bare["not_possible"] == {"gradient_accumulation_fusion": "no Apex"}
    assert "4 ranks need a GPU each; here 1 machine has 2" in refusal(tmp_path, gpus(count=2), tensor_parallel=4)
    folder = head_only(tmp_path, MOE, small())
    two = site_of(folder, gpus(count=2), nodes=("a", "b"))
    assert describe(MegatronTrainerConfig(tensor_parallel=4), two)["ranks"] == 4


def test_all_that_the_machine_lacks_is_said_at_once(tmp_path: Path) -> None:
    asked = MegatronTrainerConfig(tensor_parallel=4, attention="flash", grouped_gemm=True, dispatcher="flex")
    unknown = replace(site_of(tmp_path, inventory()), policy=PolicyFacts(tmp_path, 128, 0))
    for site in (site_of(head_only(tmp_path / "here", MOE, small()), inventory()), unknown):
        with pytest.raises(Missing) as caught:
            describe(asked, site)
        gpus, engine, flex = caught.value.items
        assert gpus.startswith("4 ranks need a GPU each; here 1 machine has none")
        assert engine.startswith("trainer.attention, trainer.grouped_gemm need Transformer Engine on a GPU")
        assert flex.startswith('trainer.dispatcher = "flex" with hybridep')


def test_gpus_are_counted_where_no_environment_tells(tmp_path: Path) -> None:
    bare = replace(site_of(tmp_path, {}), policy=PolicyFacts(tmp_path, 128, 0))
    with pytest.raises(Missing, match="1 rank needs a GPU each; here 1 machine has none"):
        describe(MegatronTrainerConfig(attention="flash"), bare)
    with pytest.raises(Missing, match="4 ranks need a GPU each; here 1 machine has 2"):
        describe(MegatronTrainerConfig(attention="flash", tensor_parallel=4), replace(bare, machine={"gpus": 2}))


def test_a_gated_delta_net_packs_with_its_kernels_only(tmp_path: Path) -> None:
    assert "set trainer.packing = false" in refusal(tmp_path / "cpu", inventory(), DELTA)
    assert "flash-linear-attention" in refusal(tmp_path / "gpu", gpus(flash_linear_attention=False), DELTA)
    folder = head_only(tmp_path / "fine", DELTA, small(DELTA))
    assert "packing" in describe(MegatronTrainerConfig(packing=False), site_of(folder, inventory()))["not_possible"]
    assert describe(MegatronTrainerConfig(), site_of(folder, gpus()))["not_possible"] == {}


def test_fields_are_megatrons_own(tmp_path: Path) -> None:
    assert "nearest: moe_router_fusion" in refusal(tmp_path, inventory(), model={"moe_router_fusio": True})
    assert "the policy's checkpoint decides it" in refusal(tmp_path, inventory(), model={"rotary_base": 3})
    assert "set by trainer.precision" in refusal(tmp_path, inventory(), model={"params_dtype": "bfloat16"})
    assert "0.19.2 has no field 'zzz'" in refusal(tmp_path, inventory(), ddp={"zzz": 1})
    assert "set by trainer.learning_rate" in refusal(tmp_path, inventory(), optimizer={"lr": 1.0})
    assert "sums of gradients stay sums" in refusal(tmp_path, inventory(), ddp={"average_in_collective": True})


def test_policies_that_bridge_cannot_convert_are_refused(tmp_path: Path) -> None:
    assert "GptOssForCausalLM" in refusal(tmp_path, inventory(), {**MOE, "architectures": ["GptOssForCausalLM"]})
    dense = {name: value for name, value in MOE.items() if name != "num_experts"}
    assert "has no experts" in refusal(tmp_path, inventory(), dense, expert_parallel=2)


def test_capabilities_shrink_with_the_environment() -> None:
    here = narrow(MegatronTrainerConfig(), inventory())
    assert here.sends == {"safetensors"} and here.deterministic
    assert here.lacking == {"broadcast": "the trainer's environment has no CUDA device"}
    there = narrow(MegatronTrainerConfig(), gpus())
    assert there.sends == plugin.capabilities.sends and not there.deterministic
    assert narrow(MegatronTrainerConfig(deterministic=True), gpus()) == replace(plugin.capabilities, lacking={})


@pytest.mark.parametrize(("settings", "words"), [
    ({"flex_sms": 32}, "flex_sms does nothing"), ({"recompute_modules": ("moe",)}, "goes with recompute"),
    ({"virtual_pipeline": 2}, "pipeline_parallel above 1"), ({"tensor_parallel": 0}, "tensor_parallel"),
    ({"optimizr": {}}, "optimizr"), ({"cache": "here"}, "absolute path"),
])
def test_settings_that_make_no_sense_are_refused(settings: Mapping[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        MegatronTrainerConfig(**settings)


def test_the_benchmarks_layout_can_be_planned(tmp_path: Path) -> None:
    """397 billion weights over 64 GPUs, as the public reference lays them out."""
    config = {"architectures": ["Qwen3_5MoeForCausalLM"], "num_hidden_layers": 60, "num_attention_heads": 32,
              "num_key_value_heads": 2, "num_experts": 512, "moe_intermediate_size": 1024,
              "linear_num_key_heads": 16, "linear_num_value_heads": 64,
              "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15}
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (248320, 4096),
                                           "lm_head.weight": (248320, 4096)}
    for layer in range(60):
        prefix = f"model.layers.{layer}."
        tensors |= {prefix + "mlp.experts.gate_up_proj": (512, 2048, 4096),
                    prefix + "mlp.experts.down_proj": (512, 4096, 1024),
                    prefix + "mlp.gate.weight": (512, 4096), prefix + "linear_attn.in_proj_qkv.weight": (12288, 4096)}
    settings = MegatronTrainerConfig(
        tensor_parallel=4, pipeline_parallel=2, expert_parallel=32, precision="bfloat16", dispatcher="flex",
        flex_sms=32, attention="flash", precision_aware_optimizer=True, recompute="selective",
        recompute_modules=("moe_act",), model={"moe_router_fusion": True})
    found = gpus(count=4)
    found["device"]["memory"] = [275 * GIB] * 4
    site = site_of(head_only(tmp_path, config, tensors), found, nodes=tuple(f"n{number}" for number in range(16)))
    facts = describe(settings, site)
    assert facts["layout"] == ("64 ranks: tensor parallel 4, pipeline parallel 2, expert parallel 32, data parallel 8, "
                               "sequence parallel")
    assert facts["parameters"] > 389e9
    assert facts["not_possible"] == {}
    assert facts["lowest_numerical_precision_in_linear"] == "bfloat16"
