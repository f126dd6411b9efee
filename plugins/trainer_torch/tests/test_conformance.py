"""The trainer keeps the contract of its role, with one rank and with two."""

from grpo_bench.testing import TrainerSuite


class TestOneRank(TrainerSuite):
    plugin = "torch"


class TestTwoRanks(TrainerSuite):
    plugin = "torch"
    options = {"workers": 2}
