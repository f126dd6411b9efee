"""The hardware plugin keeps the contract of its role."""

from grpo_bench.testing import HardwareSuite


class TestCluster(HardwareSuite):
    plugin = "cluster"
