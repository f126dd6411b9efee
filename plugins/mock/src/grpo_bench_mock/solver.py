"""The agent: it asks the policy until that answers or the turns are used up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_bench.contract import End, PolicyClient, Sandbox, Task, WorkerContext

from .config import AgentConfig
from .world import FILE
from .faults import Faults

COMMAND_S = 10.0


def _tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": "string", "description": value} for key, value in parameters.items()}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = (_tool("look", "Look around."), _tool("answer", "Give the answer.", value="The answer."))


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
            messages.append(reply.message)
            if reply.truncated:
                return End.TRUNCATED
            if not reply.tool_calls:
                return End.COMPLETED
            for call in reply.tool_calls:
                if call.name == "answer":
                    await sandbox.write(FILE, call.arguments.get("value", "") + "\n")
                    return End.COMPLETED
                result = await sandbox.exec([call.name], timeout_s=COMMAND_S)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.stdout})
        return End.MAX_TURNS


def create(config: AgentConfig, context: WorkerContext) -> MockAgent:
    """The factory inside a rollout worker."""
    return MockAgent(config)
