"""OpenHands' CodeActAgent, a program that runs wholly inside the task's sandbox."""

from grpo_bench.contract import Capabilities, Plugin, Role, WorkerEnv

from .config import OpenHandsConfig

plugin = Plugin(
    name="openhands",
    role=Role.AGENT,
    summary="the CodeActAgent of OpenHands, inside the task's sandbox",
    config=OpenHandsConfig,
    worker_factory="grpo_bench_agent_openhands.agent:make_in_worker",
    env=WorkerEnv("openhands", "grpo_bench_agent_openhands/env.toml",
                  "grpo_bench_agent_openhands.inventory:inventory"),
    describe="grpo_bench_agent_openhands.plan:describe",
    preflight="grpo_bench_agent_openhands.preflight:preflight",
    capabilities=Capabilities(prompt=frozenset({"statement", "workdir"}), sandbox=frozenset({"spawn"}),
                              form="program"),
)

__all__ = ["OpenHandsConfig", "plugin"]
