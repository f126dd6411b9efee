"""GRPO updates by Megatron Core, through Megatron Bridge, in an environment of their own."""

from grpo_bench.contract import Capabilities, Plugin, Role, WorkerEnv

from .config import MegatronTrainerConfig

plugin = Plugin(
    name="megatron",
    role=Role.TRAINER,
    summary="GRPO updates by Megatron Core: tensor, pipeline, expert and data parallel, on GPUs or CPUs",
    config=MegatronTrainerConfig,
    factory="grpo_bench_trainer_megatron.controller:make",
    describe="grpo_bench_trainer_megatron.plan:describe",
    preflight="grpo_bench_trainer_megatron.preflight:preflight",
    narrow="grpo_bench_trainer_megatron.plan:narrow",
    needs="grpo_bench_trainer_megatron.groups:needs",
    env=WorkerEnv("megatron", "grpo_bench_trainer_megatron/env.toml", "grpo_bench_trainer_megatron.inventory:take"),
    capabilities=Capabilities(sends=frozenset({"safetensors", "broadcast"}), deterministic=True),
)

__all__ = ["MegatronTrainerConfig", "plugin"]
