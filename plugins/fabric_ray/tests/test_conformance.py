"""The plugin keeps the contract of its role, on a cluster of several hosts."""

import pytest

from grpo_bench.testing import FabricSuite


@pytest.mark.real("ray")
@pytest.mark.usefixtures("cluster")
class TestRay(FabricSuite):
    plugin = "ray"
