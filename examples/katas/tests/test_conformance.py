"""What every environment owes, as grpo-bench's conformance kit demands it."""

from __future__ import annotations

from grpo_bench.testing import EnvironmentSuite


class TestEnvironment(EnvironmentSuite):
    plugin = "katas"
