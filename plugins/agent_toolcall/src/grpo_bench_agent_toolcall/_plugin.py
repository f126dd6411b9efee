"""The descriptor and the settings of the agent."""

from __future__ import annotations

from typing import Annotated

from grpo_bench.contract import Capabilities, Plugin, Role, Settings
from pydantic import Field


class ToolCallConfig(Settings):
    """Settings of the tool-calling agent."""

    max_turns: Annotated[int, Field(ge=1, le=1000, strict=True)] = 8
    """Model replies in one rollout; the rollout ends as ``max_turns`` after the last one unless that submits."""
    undo_failed_test: bool = True
    """Put the file back to its first state when a test fails, so that every attempt starts from the same place."""
    test_timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 5.0
    """Seconds one test run may take."""
    result_chars: Annotated[int, Field(ge=8, le=2**20, strict=True)] = 40
    """Characters of a failed test's last line that the policy gets to see; tokens cost time."""


plugin = Plugin(
    name="toolcall",
    role=Role.AGENT,
    summary="view, edit, test and submit over several turns, in process",
    config=ToolCallConfig,
    worker_factory="grpo_bench_agent_toolcall.agent:make_in_worker",
    capabilities=Capabilities(prompt=frozenset({"statement", "path", "test_command"}),
                              sandbox=frozenset({"exec", "files"}), form="in_process", deterministic=True),
)
