"""A machine that has whatever is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import LaunchForm, Need, Placement, PluginContext

from .config import HardwareConfig


class MockHardware:
    """The contract's Hardware."""

    def __init__(self, config: HardwareConfig) -> None:
        self._config = config

    def describe(self) -> Mapping[str, Any]:
        return {"machine": "mock", "workers": self._config.workers}

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        return {role: Placement(workers=need.workers or self._config.workers) for role, need in needs.items()}

    def form(self) -> LaunchForm:
        return LaunchForm()


def create(context: PluginContext) -> MockHardware:
    """The factory."""
    return MockHardware(context.config)
