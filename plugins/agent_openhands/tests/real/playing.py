"""The real agent against the real gateway: a generator whose replies a test writes, and places to work in."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from grpo_bench.contract import (
    AgentEnd, FinishReason, PolicyAccess, Purpose, Sample, Sampling, Task, WorkerContext,
)
from grpo_bench.contract.values import Ids
from grpo_bench.policy import ChatFormat, Gateway, RolloutRecord, make_policy
from grpo_bench.steps.meeting import Access
from grpo_bench_agent_openhands.agent import OpenHandsAgent
from grpo_bench_sandbox import Limits, SandboxSpec, backend

FOLDER = Path(str(files("grpo_bench_mock").joinpath("base")))
SOCKET = "/run/grpo-bench/policy.sock"
FINISH = ("finish", {"message": "done"})
SOURCE = {"calc.py": "def add(a, b):\n    return a - b\n"}
STATEMENT = "add(2, 3) returns -1."
MAX_TOKENS, MAX_CONTEXT = 4000, 120_000


def call(name: str, arguments: Mapping[str, Any], text: str = "") -> str:
    """A reply that calls a tool, as the policy writes one."""
    return text + "".join([f"<tool_call>\n<function={name}>\n", *(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()),
        "</function>\n</tool_call>"])


def bash(command: str, **more: Any) -> str:
    return call("execute_bash", {"command": command, "security_risk": "LOW", **more})


class HostClock:
    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def now_utc(self) -> str:
        return "2026-01-02T03:04:05.000000+00:00"


@dataclass
class Writer:
    """A generator that gives ``replies`` in turn, the last one again and again; an exception is raised."""

    replies: Sequence[str | Exception]
    asked: list[Ids] = field(default_factory=list)
    sampled: list[Ids] = field(default_factory=list)

    async def generate(self, request_id: str, ids: Ids, sampling: Sampling, *, stream: str, affinity: str,
                       deadline_s: float) -> Sample:
        reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
        self.asked.append(ids.copy())
        if isinstance(reply, Exception):
            raise reply
        chat = ChatFormat(FOLDER)
        text = [chat.encode(character) for character in reply]  # as no tokenizer would
        found = np.concatenate([*text, np.array([chat.eos_id], np.int32)])
        finish = FinishReason.STOP if len(found) <= sampling.max_tokens else FinishReason.LENGTH
        found = found[:sampling.max_tokens]
        self.sampled.append(found)
        return Sample(found, -np.arange(1, len(found) + 1).astype(np.float32), finish, ((len(found), 1),))

    async def abort(self, request_id: str) -> None: ...

    async def release(self, rollout_id: str) -> None: ...


@dataclass(frozen=True)
class Played:
    """A rollout that is over. ``end`` is what the agent returned or raised."""

    end: AgentEnd | Exception
    record: RolloutRecord
    writer: Writer
    replies: int
    diff: str
    agent: OpenHandsAgent
    asked: Mapping[str, Any] | None

    def told(self, turn: int) -> str:
        """The prompt of a turn as text."""
        return ChatFormat(FOLDER).decode(self.writer.asked[turn])


Opener = Callable[[Path, Mapping[str, str], Mapping[str, str]], Any]
"""Makes a sandbox of a folder, mounts and sockets: an async context manager."""


def context_of(interpreter: str, run_folder: str = "") -> WorkerContext:
    return WorkerContext("rollout", 0, 1, None, "", None, HostClock(), logging.getLogger("agent"), interpreter,
                         run_folder)


async def converse(agent: OpenHandsAgent, opener: Opener, replies: Sequence[str | Exception],
                   max_context: int = MAX_CONTEXT, statement: str = STATEMENT) -> Played:
    """One rollout of an agent that has started."""
    writer = Writer(replies)
    policy = make_policy({"folder": str(FOLDER), "max_context": max_context, "enable_thinking": False,
                          "tool_parser": "qwen3_xml"}, writer, HostClock())
    sampling = Sampling(Purpose.TRAIN, 1.0, 0.9, -1, 0.0, 1.0, 0.0, 0.0, (), MAX_TOKENS, max_context, 7)
    session = policy.open("r.0", "g", sampling, 60.0, agent.max_turns)
    gateway = Gateway(HostClock())
    await gateway.start(tcp=False)
    with tempfile.TemporaryDirectory(prefix="oh") as name:
        socket = Path(name, "policy.sock")
        ticket = await gateway.admit(session, socket)
        os.chmod(socket, 0o777)
        source = _written(Path(name, "source"))
        try:
            async with opener(source, agent.mounts(), {SOCKET: str(socket)}) as (sandbox, workdir, path):
                task = Task("one", "train", {"statement": statement, "workdir": workdir}, {}, "f")
                access: PolicyAccess = Access(path, ticket.token, gateway.model, session)
                try:
                    end: AgentEnd | Exception = await agent.run(task, sandbox, access)
                except Exception as error:
                    end = error
                diff = await sandbox.diff()
        finally:
            await gateway.dismiss(ticket)
            await gateway.close()
    return Played(end, session.close(), writer, session.replies, diff, agent, session.asked)


def _written(folder: Path) -> Path:
    folder.mkdir()
    for name, text in SOURCE.items():
        (folder / name).write_text(text)
    return folder


def committed(source: Path) -> Path:
    """A copy of a folder, with a history of one commit."""
    folder = source.with_name("work")
    shutil.copytree(source, folder)
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@asynccontextmanager
async def sandboxed(source: Path, mounts: Mapping[str, str],
                    sockets: Mapping[str, str]) -> AsyncIterator[tuple[Any, str, str]]:
    spec = SandboxSpec(source=committed(source), mounts=mounts, sockets=sockets)
    sandbox = await backend("bwrap").open(spec, Limits())
    try:
        yield sandbox, "/testbed", SOCKET
    finally:
        await sandbox.close()
