"""The mock parts keep the contract of their roles."""

from __future__ import annotations

from grpo_bench.testing import (
    AgentSuite, EnvironmentSuite, GeneratorSuite, HardwareSuite, RulesetSuite, TrainerSuite,
)


class TestTrainer(TrainerSuite):
    plugin = "mock"


class TestGenerator(GeneratorSuite):
    plugin = "mock"


class TestEnvironment(EnvironmentSuite):
    plugin = "mock"


class TestAgent(AgentSuite):
    plugin = "mock"


class TestHardware(HardwareSuite):
    plugin = "mock"


class TestRuleset(RulesetSuite):
    plugin = "mock"
