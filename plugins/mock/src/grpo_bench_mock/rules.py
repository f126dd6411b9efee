"""A ruleset that forbids nothing: when to validate, and when the target is met."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Finding, PluginContext, ValidationReport
from grpo_bench.steps import target_met

from .config import RulesetConfig


class MockRuleset:
    """The contract's Ruleset."""

    def __init__(self, config: RulesetConfig) -> None:
        self._config = config

    def check(self, profile: Any) -> Sequence[Finding]:
        return (Finding("stand-in", True, "a mock ruleset forbids nothing"),)

    def should_validate(self, step: int, max_steps: int) -> bool:
        return step > 0 and (step % self._config.period == 0 or step == max_steps)

    def met(self, report: ValidationReport) -> bool:
        return target_met(report, self._config.metric, self._config.target)

    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        return (Finding("stand-in", False, "a mock ruleset vouches for nothing"),)


def create(context: PluginContext) -> MockRuleset:
    """The factory."""
    return MockRuleset(context.config)
