"""The agent keeps the contract of its role."""

from grpo_bench.testing import AgentSuite


class TestToolCall(AgentSuite):
    plugin = "toolcall"
