"""The agent: it asks the policy until that hands in, says something that is no call, or the turns are used up.

Whatever line an edit names, its text becomes the whole answer, in a file of that name; other calls run as commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import End, PolicyClient, Sandbox, Task, ToolCall, WorkerContext

from .config import AgentConfig
from .faults import Faults
from .world import FILE

COMMAND_S = 10.0


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": value} for key, value in parameters.items()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = (_tool("view", "Look around."), _tool("edit", "Write the answer.", line="A line.", text="The answer."),
         _tool("submit", "Hand in."))


class MockAgent:
    """The contract's Agent."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._faults = Faults("agent", config.faults)

    async def run(self, task: Task, sandbox: Sandbox, policy: PolicyClient) -> End:
        await self._faults.at("run", task=task.id, about=task.id)
        messages: list[Mapping[str, Any]] = [{"role": "system", "content": "Answer the task."},
                                             {"role": "user", "content": task.prompt["statement"]}]
        for _ in range(self._config.max_turns):
            reply = await policy.chat(messages, TOOLS)
            if reply.truncated or not reply.tool_calls:
                return End.COMPLETED
            messages.append(reply.message)
            for call in reply.tool_calls:
                if call.name == "submit":
                    return End.COMPLETED
                messages.append({"role": "tool", "tool_call_id": call.id, "content": await _act(sandbox, call)})
        return End.MAX_TURNS


async def _act(sandbox: Sandbox, call: ToolCall) -> str:
    if call.name == "edit":
        await sandbox.write(FILE, call.arguments.get("text", "") + "\n")
        return "ok"
    return (await sandbox.exec([call.name], timeout_s=COMMAND_S)).stdout


def create(config: AgentConfig, context: WorkerContext) -> MockAgent:
    """The factory inside a rollout worker."""
    return MockAgent(config)
