"""GRPO updates in plain torch, data parallel over local processes."""

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import TorchTrainerConfig

plugin = Plugin(
    name="torch",
    role=Role.TRAINER,
    summary="GRPO updates in plain torch on CPU, data parallel over local processes",
    config=TorchTrainerConfig,
    factory="grpo_bench_trainer_torch.controller:make",
    describe="grpo_bench_trainer_torch.config:describe",
    capabilities=Capabilities(sends=frozenset({"safetensors"}), deterministic=True, one_host=True),
)

__all__ = ["TorchTrainerConfig", "plugin"]
