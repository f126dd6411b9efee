"""The environment keeps the contract of its role, in real sandboxes."""

import pytest
from grpo_bench.testing import EnvironmentSuite


@pytest.mark.real("bwrap")
class TestR2EGym(EnvironmentSuite):
    plugin = "r2egym"

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _tasks(cls, toy):
        cls.options = toy.options
