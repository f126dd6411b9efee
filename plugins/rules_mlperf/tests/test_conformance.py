"""Ruleset and observer keep the contracts of their roles."""

from grpo_bench.testing import ObserverSuite, RulesetSuite


class TestRules(RulesetSuite):
    plugin = "mlperf-training-6.1"


class TestMllog(ObserverSuite):
    plugin = "mllog"
