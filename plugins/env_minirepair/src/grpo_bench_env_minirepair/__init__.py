"""Small Python repair tasks made from a seed, with isolated hidden tests."""

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import MiniRepairConfig

plugin = Plugin(
    name="minirepair",
    role=Role.ENVIRONMENT,
    summary="small Python repair tasks made from a seed, hidden tests in an isolated process",
    config=MiniRepairConfig,
    factory="grpo_bench_env_minirepair.environment:make",
    worker_factory="grpo_bench_env_minirepair.environment:make_in_worker",
    describe="grpo_bench_env_minirepair.environment:describe",
    capabilities=Capabilities(splits=frozenset({"train", "heldout", "final"}),
                              prompt=frozenset({"statement", "path", "files", "test_command"}),
                              sandbox=frozenset({"exec", "files"}), deterministic=True),
)

__all__ = ["MiniRepairConfig", "plugin"]
