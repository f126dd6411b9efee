"""What an agent owes: it comes to an end whatever the policy says, and shows the policy no more than the prompt.

The kit plays policy and sandbox. The policy follows a script: at each turn a function gets the tools that the agent
offers and returns the calls to make. The sandbox holds one file in memory and answers every command.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from ..contract import Agent, End, ExecResult, Reply, Role, Task, ToolCall
from .suite import Rig, Suite, demand
from .world import World

MOST_TURNS = 1000
"""Replies after which an agent is taken to go on for ever."""
SECRET = "hidden-tests-of-this-task"
STATEMENT = "The function f should add one to x, but it takes one away. Repair it."
PATH = "solution.py"
SOURCE = "def f(x):\n    return x - 1\n"
NORMAL_ENDS = (End.COMPLETED, End.MAX_TURNS, End.TRUNCATED)

Tools = Sequence[Mapping[str, Any]]
Script = Callable[[int, Tools], Reply]
"""From the turn's number and the tools on offer to the reply."""


class EndlessAgent(AssertionError):
    """The agent asks and asks."""


@dataclass
class ScriptedPolicy:
    """The contract's PolicyClient. ``asked`` keeps each conversation as it was put, ``replies`` what was said."""

    script: Script
    asked: list[list[Mapping[str, Any]]] = field(default_factory=list)
    tools: list[Tools] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)

    async def chat(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> Reply:
        if len(self.asked) >= MOST_TURNS:
            raise EndlessAgent(f"the agent does not end after {MOST_TURNS} replies")
        self.asked.append(json.loads(json.dumps(list(messages))))
        self.tools.append(json.loads(json.dumps(list(tools))))
        reply = self.script(len(self.replies), tools)
        self.replies.append(reply)
        await asyncio.sleep(0)
        return reply


class FileSandbox:
    """The contract's Sandbox, one file in memory; ``touched`` says whether anything was written."""

    def __init__(self) -> None:
        self.files = {PATH: SOURCE}
        self.touched = False

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        return ExecResult(1, "noise\n" * 50, "Traceback\ngot 1, expected 3 äöü\n")

    async def read(self, path: str) -> str:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    async def write(self, path: str, text: str) -> None:
        self.touched = True
        self.files[path] = text

    async def diff(self) -> str:
        return ""

    async def close(self) -> None:
        self.files = {}


def said(text: str = "", *calls: tuple[str, Mapping[str, str]], turn: int = 0, truncated: bool = False) -> Reply:
    """A reply with these calls, and its message in OpenAI's form."""
    made = tuple(ToolCall(f"call_{turn}_{number}", name, arguments)
                 for number, (name, arguments) in enumerate(calls))
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if made:
        message["tool_calls"] = [{"id": call.id, "type": "function", "function": {
            "name": call.name, "arguments": json.dumps(dict(call.arguments))}} for call in made]
    return Reply(text, made, truncated, message)


@dataclass
class AgentRig(Rig):
    """``agent`` as a rollout worker makes it."""

    agent: Agent
    task: Task

    async def run(self, script: Script, sandbox: Any = None) -> tuple[End, ScriptedPolicy]:
        policy = ScriptedPolicy(script)
        end = await self.agent.run(self.task, sandbox or FileSandbox(), policy)
        assert end in NORMAL_ENDS, f"an agent ends as one of {', '.join(NORMAL_ENDS)}, not {end!r}"
        return End(end), policy


class AgentSuite(Suite):
    """Demands on agents that run in process. ``prompt`` adds keys to the task's prompt for an agent that needs more
    than the kit's own task has: statement, path, files and test_command."""

    role = Role.AGENT
    prompt: ClassVar[Mapping[str, Any]] = {}

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[AgentRig]:
        rig.needs(rig.descriptor.capabilities.form == "in_process",
                  "the kit drives agents that run in process; this one is a program")
        prompt = {"statement": STATEMENT, "path": PATH, "files": {PATH: SOURCE}, "test_command": ["run-tests"],
                  **self.prompt}
        lacking = rig.descriptor.capabilities.prompt - prompt.keys()
        assert not lacking, f"the kit's task has no {', '.join(sorted(lacking))}: give it in the suite's `prompt`"
        task = Task("conformance-1", "train", prompt, {"tests": SECRET}, "0" * 64)
        yield AgentRig(**vars(rig), agent=world.make_in_worker(rig.descriptor, rig.config), task=task)

    @demand
    async def test_the_policy_sees_the_statement(self, rig: AgentRig) -> None:
        """The first request tells the policy what to do."""
        _, policy = await rig.run(lambda turn, tools: said("I give up."))
        assert policy.asked, "the agent never asked the policy"
        assert STATEMENT in json.dumps(policy.asked[0], ensure_ascii=False)

    @demand
    async def test_hidden_parts_stay_hidden(self, rig: AgentRig) -> None:
        """Nothing of ``Task.payload`` is in what the policy sees."""
        _, policy = await rig.run(_every_tool)
        assert SECRET not in json.dumps([policy.asked, policy.tools])

    @demand
    async def test_conversations_have_openais_form(self, rig: AgentRig) -> None:
        """Known roles only; tools are functions with a schema."""
        _, policy = await rig.run(_every_tool)
        for message in (message for messages in policy.asked for message in messages):
            assert message["role"] in ("system", "developer", "user", "assistant", "tool")
        for tool in (tool for tools in policy.tools for tool in tools):
            assert tool["type"] == "function" and tool["function"]["name"]

    @demand
    async def test_every_call_is_answered_once(self, rig: AgentRig) -> None:
        """Before its next reply the policy is told the result of each of its calls, under that call's id: a chat
        template cannot render anything else, and a policy that is told nothing cannot learn."""
        _, policy = await rig.run(_every_tool_twice)
        for reply, messages in zip(policy.replies, policy.asked[1:], strict=False):
            asked = sorted(call.id for call in reply.tool_calls)
            told = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
            latest = sorted(name for name in told if name in asked)
            assert latest == asked, f"the calls {asked} were answered as {latest}"
            called = [call["id"] for message in messages for call in message.get("tool_calls") or []]
            assert sorted(told) == sorted(called), "results and calls do not go together"

    @demand
    async def test_replies_stay_as_they_were(self, rig: AgentRig) -> None:
        """A reply goes into the history unchanged, or the recorded tokens no longer match the conversation. Replies in
        the first request are examples of the agent's own."""
        _, policy = await rig.run(_every_tool)
        known = [*policy.asked[0], *(json.loads(json.dumps(dict(reply.message))) for reply in policy.replies)]
        for message in (message for messages in policy.asked for message in messages):
            assert message["role"] != "assistant" or message in known, f"nobody replied {message}"

    @demand
    async def test_a_policy_that_says_nothing_ends_it(self, rig: AgentRig) -> None:
        """Text without a call, over and over, even empty text, comes to an end."""
        await rig.run(lambda turn, tools: said(""))
        await rig.run(lambda turn, tools: said("Let me think about that."))

    @demand
    async def test_a_reply_cut_off_ends_it(self, rig: AgentRig) -> None:
        """Where context or limit cut the reply there is no more to come."""
        await rig.run(lambda turn, tools: said("Let me th", turn=turn, truncated=True))

    @demand
    async def test_a_busy_policy_ends_it(self, rig: AgentRig) -> None:
        """A policy that uses the first tool for ever reaches a bound on turns."""
        await rig.run(lambda turn, tools: said("", *_calls(tools[:1]), turn=turn))

    @demand
    async def test_unknown_tools_are_answered(self, rig: AgentRig) -> None:
        """A tool that was never offered is the policy's mistake; it is told so, or the rollout ends."""
        await rig.run(lambda turn, tools: said("", ("no_such_tool", {"x": "1"}), turn=turn))

    @demand
    async def test_malformed_calls_are_answered(self, rig: AgentRig) -> None:
        """Arguments that are missing, unknown, empty, huge or of another type are the policy's mistake as well."""
        for value in ("", "-1", "9" * 5000, "[]", "no number", "\x00", "../../etc/passwd", "x" * 100_000):
            await rig.run(lambda turn, tools, value=value: said("", *_calls(tools, value), turn=turn))
        await rig.run(lambda turn, tools: said("", *((_name(tool), {}) for tool in tools), turn=turn))
        await rig.run(lambda turn, tools: said("", *((_name(tool), {"odd": "1"}) for tool in tools), turn=turn))

    @demand
    async def test_many_calls_in_one_reply(self, rig: AgentRig) -> None:
        """A reply may hold any number of calls."""
        await rig.run(lambda turn, tools: said("", *(_calls(tools) * 20), turn=turn))

    @demand
    async def test_a_policy_that_fails_ends_it(self, rig: AgentRig) -> None:
        """An error of the policy leaves the agent, or ends it; asking again for ever would hide it."""
        def fail(turn: int, tools: Tools) -> Reply:
            raise ConnectionError("the generator is gone")

        try:
            await rig.run(fail)
        except EndlessAgent:
            raise
        except Exception:
            return

    @demand
    async def test_being_cancelled_ends_it(self, rig: AgentRig) -> None:
        """Deadlines cancel; an agent that catches that keeps its rollout, and the run, waiting."""
        waiting = asyncio.Event()

        class Silent(ScriptedPolicy):
            async def chat(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> Reply:
                waiting.set()
                return await asyncio.Future()

        running = asyncio.ensure_future(rig.agent.run(rig.task, FileSandbox(), Silent(_every_tool)))
        await waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    @demand
    async def test_rollouts_share_nothing(self, rig: AgentRig) -> None:
        """One agent object serves all rollouts of a worker at once; each keeps to its own sandbox."""
        idle, busy = FileSandbox(), FileSandbox()
        (_, quiet), (_, loud) = await asyncio.gather(
            rig.run(lambda turn, tools: said(""), idle), rig.run(_every_tool, busy))
        assert not idle.touched and idle.files == {PATH: SOURCE}
        assert quiet.asked[0] == loud.asked[0]

    @demand
    async def test_rollouts_do_not_hear_each_other(self, rig: AgentRig) -> None:
        """Nothing that is said in one rollout is heard in another, at the same time or later."""
        marks = "said-in-the-first", "said-in-the-second"
        (_, first), (_, second) = await asyncio.gather(*(rig.run(_marked(mark)) for mark in marks))
        assert marks[1] not in json.dumps(first.asked) and marks[0] not in json.dumps(second.asked), (
            "a rollout hears what is said in another one at the same time")
        _, third = await rig.run(_every_tool)
        assert third.asked[0] == first.asked[0], "a second rollout of the task begins otherwise than the first"


def _name(tool: Mapping[str, Any]) -> str:
    return tool["function"]["name"]


def _calls(tools: Tools, value: str = "1") -> tuple[tuple[str, Mapping[str, str]], ...]:
    """A call of each tool with every parameter it names."""
    return tuple((_name(tool), dict.fromkeys(tool["function"].get("parameters", {}).get("properties", {}), value))
                 for tool in tools)


def _every_tool(turn: int, tools: Tools) -> Reply:
    """One tool after the other, then silence."""
    return said("", *_calls([tools[turn]]), turn=turn) if turn < len(tools) else said("Done.")


def _every_tool_twice(turn: int, tools: Tools) -> Reply:
    """One tool after the other, each called two times in one reply, then silence."""
    return said("", *_calls([tools[turn]] * 2), turn=turn) if turn < len(tools) else said("Done.")


def _marked(mark: str) -> Script:
    """One tool after the other, with a mark in text and arguments."""
    return lambda turn, tools: said(mark, *(_calls([tools[turn]], mark) if turn < len(tools) else ()), turn=turn)
