"""The agent: one conversation about one file.

The first message holds the statement and the numbered file. The policy answers with tool calls: ``view`` shows the
file as it stands, ``edit`` replaces a line, ``test`` runs the task's test command, ``submit`` ends the rollout. A
failing test undoes the edits (where the settings say so) and tells the policy. A reply without a call, or one cut off,
is the policy's last word and ends the rollout too; a call that can't be carried out is answered with a short error.
Whether it was the context that cut a reply is for the record to say, not for the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_bench.contract import End, PolicyClient, Sandbox, Task, ToolCall, WorkerContext

from ._plugin import ToolCallConfig


_LINE_DIGITS = 9
"""More digits are no line number, and very many are none that Python would read."""


def _tool(name: str, description: str, **parameters: str) -> Mapping[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS: Sequence[Mapping[str, Any]] = (
    _tool("view", "Show the file with line numbers."),
    _tool("edit", "Replace one line of the file.", line="integer", text="string"),
    _tool("test", "Run the visible tests."),
    _tool("submit", "Hand in the file as it is."),
)


def numbered(source: str) -> str:
    """The file as the policy sees it: line number, tab, line."""
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(_lines(source), 1))


def _lines(source: str) -> list[str]:
    return source.removesuffix("\n").split("\n")


class ToolCallAgent:
    """Stateless between rollouts."""

    def __init__(self, config: ToolCallConfig) -> None:
        self._config = config

    async def run(self, task: Task, sandbox: Sandbox, policy: PolicyClient) -> End:
        episode = Episode(self._config, task, sandbox, await sandbox.read(task.prompt["path"]))
        messages: list[Mapping[str, Any]] = [
            {"role": "user", "content": f"{task.prompt['statement']}\n{numbered(episode.source)}"}
        ]
        for _ in range(self._config.max_turns):
            reply = await policy.chat(messages, TOOLS)
            if reply.truncated or not reply.tool_calls:
                return End.COMPLETED
            messages.append(reply.message)
            for call in reply.tool_calls:
                if call.name == "submit":
                    return End.COMPLETED
                messages.append({"role": "tool", "tool_call_id": call.id, "content": await episode.act(call)})
        return End.MAX_TURNS


class Episode:
    """The file of one rollout and what the tools do to it."""

    def __init__(self, config: ToolCallConfig, task: Task, sandbox: Sandbox, source: str) -> None:
        self._config = config
        self._path: str = task.prompt["path"]
        self._test_command: Sequence[str] = task.prompt["test_command"]
        self._sandbox = sandbox
        self._original = source
        self.source = source

    async def act(self, call: ToolCall) -> str:
        """Carry out one call; returns the tool's result."""
        if call.name == "view":
            return numbered(self.source)
        if call.name == "edit":
            return await self._edit(call.arguments)
        if call.name == "test":
            return await self._test()
        return "error: no such tool"

    async def _edit(self, arguments: Mapping[str, str]) -> str:
        lines = _lines(self.source)
        line = arguments.get("line", "").strip()
        exists = "text" in arguments and line.isdecimal() and len(line) <= _LINE_DIGITS and 1 <= int(line) <= len(lines)
        if not exists:
            return "error: no such line"
        lines[int(line) - 1] = arguments["text"]
        await self._write("\n".join(lines) + "\n")
        return "ok"

    async def _test(self) -> str:
        result = await self._sandbox.exec(self._test_command, timeout_s=self._config.test_timeout_s)
        if result.exit_code == 0:
            return "PASS"
        said = "timed out" if result.timed_out else _last_line(result.stderr) or _last_line(result.stdout)
        undone = ""
        if self._config.undo_failed_test and self.source != self._original:
            await self._write(self._original)
            undone = "; undone"
        return f"FAIL {said[: self._config.result_chars]}{undone}"

    async def _write(self, source: str) -> None:
        await self._sandbox.write(self._path, source)
        self.source = source


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def make_in_worker(config: ToolCallConfig, _context: WorkerContext) -> ToolCallAgent:
    """The descriptor's worker factory."""
    return ToolCallAgent(config)
