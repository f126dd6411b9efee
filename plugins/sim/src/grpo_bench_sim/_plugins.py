"""The descriptors. A simulation puts these parts in the places of a profile's own; a profile cannot name them, since
what they need to know is not in it."""

from __future__ import annotations

from grpo_bench.contract import Capabilities, Plugin, Role

from .config import PartConfig

TRANSPORT = "modelled"

trainer = Plugin(
    name="modelled", role=Role.TRAINER, summary="updates that take modelled times", config=PartConfig,
    factory="grpo_bench_sim.trainer:create", stand_in=True,
    capabilities=Capabilities(sends=frozenset({TRANSPORT}), computes="nothing", deterministic=True))

generator = Plugin(
    name="modelled", role=Role.GENERATOR, summary="replies that take modelled times", config=PartConfig,
    factory="grpo_bench_sim.generator:create", client="grpo_bench_sim.generator:make_client",
    policy="grpo_bench_sim.rollouts:make_policy", stand_in=True,
    capabilities=Capabilities(receives=frozenset({TRANSPORT}), refit=frozenset({"drain", "keep"}),
                              computes="nothing", deterministic=True))

environment = Plugin(
    name="modelled", role=Role.ENVIRONMENT, summary="sandboxes and grading that take modelled times",
    config=PartConfig, worker_factory="grpo_bench_sim.rollouts:create_environment", stand_in=True,
    capabilities=Capabilities(prompt=frozenset({"statement"}), deterministic=True))

agent = Plugin(
    name="modelled", role=Role.AGENT, summary="turns that take modelled times", config=PartConfig,
    worker_factory="grpo_bench_sim.rollouts:create_agent", stand_in=True,
    capabilities=Capabilities(prompt=frozenset({"statement"}), deterministic=True))
