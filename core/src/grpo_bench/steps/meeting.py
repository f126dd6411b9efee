"""How the agent of a rollout meets the policy: in process by calls, as a program over a socket in its sandbox.

A worker holds one :class:`Meeting` of either form. For each rollout it gives a :class:`Door`: what the rollout's
sandbox has to hold, and the call that drives the agent. Behind either door the same session keeps the record.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from grpo_bench.contract import Agent, AgentEnd, PolicyClient, ProgramAgent, Sampling, Task

SOCKET = "/run/grpo-bench/policy.sock"
"""Where a program finds the policy, inside its sandbox."""
_ROOM = 80
"""Longest folder that leaves room for a socket's name in the 104 bytes of its address."""


@dataclass(frozen=True, slots=True)
class Door:
    """One rollout's way to the policy. ``run`` takes task and sandbox."""

    run: Callable[[Task, Any], Awaitable[AgentEnd]]
    mounts: Mapping[str, str] = field(default_factory=dict)
    sockets: Mapping[str, str] = field(default_factory=dict)


class Meeting(Protocol):
    """``max_turns`` is the number of replies that a session grants; None: the agent is trusted to count."""

    @property
    def max_turns(self) -> int | None: ...

    async def start(self) -> None: ...

    def door(self, session: Any) -> AbstractAsyncContextManager[Door]: ...

    async def close(self) -> None: ...


class InProcess:
    """The agent holds the session itself."""

    max_turns = None

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def start(self) -> None:
        """There is nothing to start."""

    @asynccontextmanager
    async def door(self, session: PolicyClient) -> AsyncIterator[Door]:
        async def run(task: Task, sandbox: Any) -> AgentEnd:
            return AgentEnd(await self._agent.run(task, sandbox, session), "")

        yield Door(run)

    async def close(self) -> None:
        """There is nothing to close."""


class Gateway(Protocol):
    """Serves sessions over sockets."""

    @property
    def model(self) -> str: ...

    async def start(self, *, tcp: bool) -> None: ...

    async def admit(self, session: Any, socket: Path) -> Any:
        """A ticket with ``token``."""
        ...

    async def dismiss(self, ticket: Any) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Access:
    """The contract's PolicyAccess, over a rollout's session."""

    socket: str
    token: str
    model: str
    session: Any

    @property
    def sampling(self) -> Sampling:
        return self.session.sampling

    def replies(self) -> int:
        return self.session.replies

    def truncated(self) -> bool:
        return self.session.truncated

    def asked(self) -> Mapping[str, Any] | None:
        return self.session.asked


class AsProgram:
    """The agent is a program; ``folder`` holds a socket for each rollout in flight, or another one where its path is
    too long for a socket's address."""

    def __init__(self, agent: ProgramAgent, gateway: Gateway, folder: Path, rank: int) -> None:
        self._agent = agent
        self._gateway = gateway
        self._folder = folder
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._names = (f"{rank}-{number}.sock" for number in itertools.count())

    @property
    def max_turns(self) -> int:
        return self._agent.max_turns

    async def start(self) -> None:
        if len(str(self._folder)) > _ROOM:
            self._own = tempfile.TemporaryDirectory(prefix="grpo-bench-", dir="/tmp")
            self._folder = Path(self._own.name)
        await self._gateway.start(tcp=False)
        await self._agent.start()

    @asynccontextmanager
    async def door(self, session: Any) -> AsyncIterator[Door]:
        path = self._folder / next(self._names)
        ticket = await self._gateway.admit(session, path)
        access = Access(SOCKET, ticket.token, self._gateway.model, session)

        async def run(task: Task, sandbox: Any) -> AgentEnd:
            return await self._agent.run(task, sandbox, access)

        try:
            yield Door(run, self._agent.mounts(), {SOCKET: str(path)})
        finally:
            await self._gateway.dismiss(ticket)

    async def close(self) -> None:
        try:
            await self._agent.close()
        finally:
            await self._gateway.close()
            if self._own is not None:
                self._own.cleanup()
