"""One command in a sandbox, from the host's side: its streams, its end, and the end of its whole tree.

bubblewrap makes a pid namespace for every command and reports its first process. A tree is ended by signals to every
member of that namespace, and then by the end of that first process, with which the kernel ends all others.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
from contextlib import suppress
from typing import Any

from grpo_bench.processes import exit_code, let_go

_POLL_S = 0.02
_REPORT_S = 10.0
"""How long bubblewrap may take to say whose tree it started; one that is killed before may leave it behind."""
_CHUNK = 1 << 16
DROPPED = " more bytes of output were dropped]\n"
"""How the text of a stream ends of which more was read than kept."""


class Running:
    """The contract's Program. ``status`` is the reading end of the pipe on which bubblewrap reports."""

    def __init__(self, process: asyncio.subprocess.Process, status: int, grace_s: float) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = process.stdout, process.stderr
        self._process = process
        self._status = status
        self._reported = b""
        self._grace_s = grace_s
        fcntl.fcntl(status, fcntl.F_SETFL, os.O_NONBLOCK)

    async def feed(self, data: bytes) -> None:
        """Give it its standard input and close that."""
        stream = self._process.stdin
        assert stream is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            stream.write(data)
            await stream.drain()
        stream.close()

    async def wait(self) -> int:
        return await exit_code(self._process)

    @property
    def report(self) -> dict[str, Any]:
        """What bubblewrap said so far: ``child-pid`` once the tree exists, ``exit-code`` once it has ended."""
        with suppress(BlockingIOError):
            while self._status >= 0 and (data := os.read(self._status, 4096)):
                self._reported += data
        found: dict[str, Any] = {}
        for line in self._reported.splitlines():
            with suppress(ValueError):
                found |= json.loads(line)
        return found

    async def kill(self) -> None:
        first = await self._begun()
        if first is not None and self._process.returncode is None:
            space = _space(first)
            members = _members(space) - {first} if space else set()
            for pid in sorted(members):  # whoever started others is told before they end
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_s if members else 0):
                    await self.wait()
            if self._process.returncode is None and space and _space(first) == space:
                with suppress(ProcessLookupError):
                    os.kill(first, signal.SIGKILL)
            if space:
                await _gone(space)
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self.wait()
        self.close()

    async def _begun(self) -> int | None:
        """The first process of the tree, once it is known; None where there is none any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_S):
                while "child-pid" not in self.report and self._process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        return self.report.get("child-pid")

    def close(self) -> None:
        """Let the descriptors go; twice is fine."""
        if self._status >= 0:
            _ = self.report
            os.close(self._status)
            self._status = -1

    def let_go(self) -> None:
        """Close its streams, read to their end or not."""
        let_go(self._process)


async def collect(stream: asyncio.StreamReader, limit: int) -> bytes:
    """All of a stream up to its end; what is beyond ``limit`` bytes is read, dropped and counted."""
    kept, dropped = bytearray(), 0
    while data := await stream.read(_CHUNK):
        room = limit - len(kept)
        kept += data[:room]
        dropped += max(0, len(data) - room)
    if dropped:
        kept += f"\n[{dropped}{DROPPED}".encode()
    return bytes(kept)


def _space(pid: int) -> str:
    """The pid namespace that a process is in; empty where it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _members(space: str) -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal() and _space(int(name)) == space}


async def _gone(space: str) -> None:
    """Wait until nobody is in a namespace whose first process was killed."""
    while _members(space):  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(_POLL_S)
