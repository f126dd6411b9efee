"""The rollout worker's side of the fork servers: who is idle, framing, retries, restarts.

A pool owns ``parallel`` servers; one run occupies one of them, further runs wait in order, so the pool is also the
admission limit. A server that dies, or that says it could not run something, is replaced and the run tried again a few
times; after that it is a SandboxError, which is never a verdict on the candidate.
"""

from __future__ import annotations

import asyncio
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_bench.processes import start_process

from . import launch
from .config import MiniRepairConfig
from .inside.serve import REPLY, REQUEST, Outcome
from .launch import SandboxError

_ATTEMPTS = 3
_START_S = 60.0
_GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Run:
    """How one run ended. ``output`` is stdout, or the lines of results; both streams as the candidate wrote them."""

    outcome: Outcome
    exit_code: int
    output: bytes
    errors: bytes


class Pool:
    """Fork servers of one rollout worker."""

    def __init__(self, config: MiniRepairConfig) -> None:
        self._config = config
        self._isolation = ""
        self._idle: asyncio.Queue[_Server | None] = asyncio.Queue()
        self._servers: set[_Server] = set()

    async def start(self) -> None:
        """Find the isolation in force, start the servers and see that they work."""
        self._isolation, _ = await asyncio.to_thread(launch.probe, self._config.isolation)
        for _ in range(self._config.parallel):
            self._idle.put_nowait(None)
        checked = await asyncio.gather(*(self.call("check.py", "def f(x):\n    return x + 1\n", "f", [[1]])
                                         for _ in range(self._config.parallel)))
        for run in checked:
            if run.output != b"0x2":
                raise SandboxError(f"the sandbox does not compute: {run}")

    async def file(self, files: Mapping[str, str], argv: Sequence[str], stdin: str, wall_s: float) -> Run:
        """Run ``argv[0]``, one of ``files``, as a program."""
        body = marshal.dumps((dict(files), list(argv), stdin), 2)
        return await self._run(False, body, min(wall_s, self._config.wall_s))

    async def call(self, path: str, source: str, name: str, inputs: Sequence[Sequence[Any]]) -> Run:
        """Load ``source`` and call its function ``name`` on every input; one line of results each."""
        body = marshal.dumps((path, source, name, [list(item) for item in inputs]), 2)
        return await self._run(True, body, self._config.wall_s)

    async def close(self) -> None:
        """End the servers and wait for them, so that their CPU time is accounted for."""
        await asyncio.gather(*(server.close() for server in tuple(self._servers)))
        self._servers.clear()

    async def _run(self, calls: bool, body: bytes, wall_s: float) -> Run:
        config = self._config
        head = REQUEST.pack(calls, len(body), config.cpu_s, wall_s, config.memory_mb << 20, config.output_bytes)
        reasons: list[str] = []
        server = await self._idle.get()
        try:
            while len(reasons) < _ATTEMPTS:
                try:
                    server = server or await self._start_server()
                    async with asyncio.timeout(wall_s + _GRACE_S):
                        run = await server.ask(head, body)
                except (OSError, EOFError, TimeoutError) as error:
                    reasons.append(f"{type(error).__name__} {error}".strip())
                else:
                    if run.outcome is not Outcome.INFRASTRUCTURE:
                        return run
                    reasons.append(run.errors.decode(errors="replace") or f"ended by signal {run.exit_code - 128}")
                server = await self._drop(server)
        except BaseException:
            server = await asyncio.shield(self._drop(server))
            raise
        finally:
            self._idle.put_nowait(server)
        raise SandboxError(f"the sandbox failed {_ATTEMPTS} times: " + "; ".join(reasons))

    async def _start_server(self) -> _Server:
        server = await _Server.start(self._isolation)
        self._servers.add(server)
        return server

    async def _drop(self, server: _Server | None) -> None:
        if server is not None:
            self._servers.discard(server)
            await server.kill()


class _Server:
    """One fork server process, one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._requests, self._replies = process, process.stdin, process.stdout

    @classmethod
    async def start(cls, isolation: str) -> _Server:
        process = await start_process(
            *launch.command(isolation), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env=launch.ENVIRONMENT, start_new_session=True)
        server = cls(process)
        try:
            async with asyncio.timeout(_START_S):
                ready = await server._replies.readline()
        except BaseException:
            await asyncio.shield(server.kill())
            raise
        if not ready:
            raise EOFError(f"a fork server ended at its start with code {await process.wait()}")
        return server

    async def ask(self, head: bytes, body: bytes) -> Run:
        self._requests.write(head + body)
        await self._requests.drain()
        reply = await self._replies.readexactly(REPLY.size)
        outcome, exit_code, output, errors = REPLY.unpack(reply)
        streams = await self._replies.readexactly(output + errors)
        return Run(Outcome(outcome), exit_code, streams[:output], streams[output:])

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def close(self) -> None:
        self._requests.close()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE_S)
        except TimeoutError:
            await self.kill()
