"""The core's own fabrics keep the contract of their role."""

from grpo_bench.testing import FabricSuite


class TestInline(FabricSuite):
    plugin = "inline"
    options = {"serialise": True}


class TestInlineDirectly(FabricSuite):
    plugin = "inline"


class TestLocal(FabricSuite):
    plugin = "local"
