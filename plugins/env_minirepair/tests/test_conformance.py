"""The environment keeps the contract of its role."""

from grpo_bench.testing import EnvironmentSuite


class TestMiniRepair(EnvironmentSuite):
    plugin = "minirepair"
    options = {"train_tasks": 32, "heldout_tasks": 16, "final_tasks": 16}
