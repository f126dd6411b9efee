"""Real software tasks in the form of R2E-Gym: rows, sandboxes for agents, grading by hidden tests."""

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import R2EGymConfig

plugin = Plugin(
    name="r2egym",
    role=Role.ENVIRONMENT,
    summary="real repositories with real faults, as R2E-Gym has them, graded by hidden tests in fresh sandboxes",
    config=R2EGymConfig,
    factory="grpo_bench_env_r2egym.environment:make",
    worker_factory="grpo_bench_env_r2egym.environment:make_in_worker",
    describe="grpo_bench_env_r2egym.facts:describe",
    preflight="grpo_bench_env_r2egym.preflight:preflight",
    capabilities=Capabilities(splits=frozenset({"train", "validation"}),
                              prompt=frozenset({"statement", "workdir", "repo", "instance_id"}),
                              sandbox=frozenset({"exec", "files", "spawn"})),
)

__all__ = ["R2EGymConfig", "plugin"]
