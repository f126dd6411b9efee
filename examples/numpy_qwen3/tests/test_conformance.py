"""What every generator owes, as grpo-bench's conformance kit demands it."""

from __future__ import annotations

from grpo_bench.testing import GeneratorSuite


class TestGenerator(GeneratorSuite):
    plugin = "numpy_qwen3"
    engines_option = "workers"
