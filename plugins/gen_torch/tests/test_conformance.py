"""The generator keeps the contract of its role."""

from grpo_bench.testing import GeneratorSuite


class TestTorch(GeneratorSuite):
    plugin = "torch"
    options = {"gather_s": 0.0}
    engines_option = "workers"
