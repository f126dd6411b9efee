"""The conformance kit for authors of plugins: one suite of demands for each role.

A suite is a class of tests. A test file inherits from it and names the plugin, and pytest does the rest::

    from grpo_bench.testing import EnvironmentSuite

    class TestAcme(EnvironmentSuite):
        plugin = "acme"
        options = {"train_tasks": 8}

There is no pytest plugin to load: nothing here runs, and pytest is not even imported, before a suite is asked for by
name. ``grpo-bench plugins check NAME`` runs the same suites without a test file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import AgentSuite as AgentSuite
    from .environment import EnvironmentSuite as EnvironmentSuite
    from .fabric import FabricSuite as FabricSuite
    from .generator import GeneratorSuite as GeneratorSuite
    from .hardware import HardwareSuite as HardwareSuite
    from .observer import ObserverSuite as ObserverSuite
    from .ruleset import RulesetSuite as RulesetSuite
    from .suite import Suite as Suite
    from .trainer import TrainerSuite as TrainerSuite

_HOMES = {
    "AgentSuite": "agent", "EnvironmentSuite": "environment", "FabricSuite": "fabric", "GeneratorSuite": "generator",
    "HardwareSuite": "hardware", "ObserverSuite": "observer", "RulesetSuite": "ruleset", "Suite": "suite",
    "TrainerSuite": "trainer",
}

SUITES = {
    "agent": "AgentSuite", "environment": "EnvironmentSuite", "fabric": "FabricSuite", "generator": "GeneratorSuite",
    "hardware": "HardwareSuite", "observer": "ObserverSuite", "ruleset": "RulesetSuite", "trainer": "TrainerSuite",
}
"""The suite of each role."""

__all__ = [
    "SUITES", "AgentSuite", "EnvironmentSuite", "FabricSuite", "GeneratorSuite", "HardwareSuite", "ObserverSuite",
    "RulesetSuite", "Suite", "TrainerSuite",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest
    homes = [f"{__name__}.{home}" for home in ("suite", _HOMES[name])]
    pytest.register_assert_rewrite(*homes)
    return getattr(import_module(homes[-1]), name)
