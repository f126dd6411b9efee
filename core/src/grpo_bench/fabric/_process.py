"""One worker process as its starter sees it: started, spoken to, watched, ended, accounted for.

The process leads its own session. It counts as ended when the kernel says so, and only then is it reaped, after all
that is left of its session and its descendants was killed; so no process id is signalled after it may name another
process, and CPU time is counted once: what the process waited for is in its own account, the rest is read before it is
killed.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_bench.contract import DeadlineExceeded, PlanError, PluginError, WorkerLost

from ._host import CONTROL
from ._links import OUTSIDE, place_and_path
from ._peer import Peer
from ._proc import Process, exit_descriptor, family, kill, table

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_TAIL_BYTES = 4096
_TAIL_LINES = 20
_LOST_GRACE_S = 5.0
_STACKS_DEADLINE_S = 1.0


class HostProcess:
    """A process, started when this is made. ``peer`` calls into it; ``exited`` is set once it is reaped. ``outside``
    forwards the process's calls to workers of other places."""

    def __init__(self, name: str, interpreter: str, env: Mapping[str, str], log: Path, endpoint: str,
                 outside: object | None = None) -> None:
        self.name = name
        self.exited = asyncio.Event()
        self.peer = Peer(self._served, self._explain)
        self._outside = outside
        self._log = log
        self._log_start = log.stat().st_size
        place, path = place_and_path(endpoint)
        self._where = f" on {place}" if place else ""
        self._stacks = Path(f"{path}.stacks")
        self._stacks.touch()
        self._ready = False
        self._ended_cpu_s = 0.0
        self._known: list[Process] = []
        self._socket, theirs = socket.socketpair()
        command = [interpreter, "-P", "-m", "grpo_bench.fabric.worker", str(theirs.fileno()), endpoint,
                   str(self._stacks)]
        with theirs, log.open("ab") as output:
            try:
                self._popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                               env=dict(env), pass_fds=(theirs.fileno(),), start_new_session=True)
            except OSError as error:
                self._socket.close()
                raise PlanError(f"worker {name} cannot be started with {interpreter}: {error}") from error
        self._watching = asyncio.create_task(self._watch())

    async def greet(self, path: Sequence[str]) -> None:
        """Connect and wait until the host answers; ``path`` is where its modules are, beside its own."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self.peer.frames, sock=self._socket)
        await self.control("see", list(path))
        self._ready = True

    async def control(self, method: str, *args: Any, deadline_s: float | None = None) -> Any:
        return await self.peer.call(CONTROL, method, args, {}, deadline_s)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, SIGKILL after the grace time; returns when everything it started is dead."""
        self._known = family(self._popen.pid, table())
        try:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.exited.wait()
        finally:
            self._signal(signal.SIGKILL)
        await self.exited.wait()
        await self.peer.close()
        self._socket.close()

    async def stacks(self) -> str:
        """Stacks of all threads, and of the tasks where the event loop answers."""
        if self.exited.is_set() or not self._ready:
            return "the process has ended" if self.exited.is_set() else "the interpreter is starting"
        before = self._stacks.stat().st_size
        self._signal(signal.SIGUSR1)
        threads = await self._written_after(before)
        try:
            tasks = await self.control("tasks", deadline_s=_STACKS_DEADLINE_S)
        except (DeadlineExceeded, PluginError) as error:
            tasks = f"the event loop does not answer: {error.message}"
        return f"{threads}\nTasks:\n{tasks}"

    def cpu_seconds(self, processes: Mapping[int, Process]) -> float:
        """CPU time of the process and all it started, ended or not."""
        own = processes.get(self._popen.pid)
        if self.exited.is_set() or own is None:
            return self._ended_cpu_s
        self._known = family(own.pid, processes)
        return own.cpu_s + sum(process.cpu_s for process in self._known)

    def _signal(self, number: int) -> None:
        if not self.exited.is_set():
            os.kill(self._popen.pid, number)

    async def _watch(self) -> None:
        await _wait_for_exit(self._popen.pid)
        self._reap()
        self.exited.set()
        await asyncio.sleep(_LOST_GRACE_S)
        await self.peer.close()

    def _reap(self) -> None:
        pid = self._popen.pid
        counted: dict[int, Process] = {}
        while True:
            processes = table()
            left = [item for item in self._known if (now := processes.get(item.pid)) and now.started == item.started]
            new = {item.pid: item for item in (*family(pid, processes), *left) if item.pid not in counted}
            if not new:
                break
            kill(new.values())
            counted.update((item, processes[item]) for item in new)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        self._ended_cpu_s = usage.ru_utime + usage.ru_stime + sum(item.cpu_s for item in counted.values())

    async def _explain(self) -> WorkerLost:
        try:
            async with asyncio.timeout(_LOST_GRACE_S):
                await self.exited.wait()
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await self.exited.wait()
        tail = self._tail()
        last = f"; its last output: {_last_word(tail)}" if tail else ""
        error = WorkerLost(f"worker process {self.name}{self._where} {_ending(self._popen.returncode)}{last}",
                           hint=f"its output is in {self._log}")
        error.remote_traceback = "\n".join(tail)
        return error

    def _tail(self) -> list[str]:
        with self._log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(self._log_start, size - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-_TAIL_LINES:]

    async def _written_after(self, before: int) -> str:
        """What the signal handler appends to the file of stacks, once it has stopped growing."""
        size = before
        with suppress(TimeoutError):
            async with asyncio.timeout(_STACKS_DEADLINE_S):
                while (now := self._stacks.stat().st_size) == before or now != size:
                    size = now
                    await asyncio.sleep(0.02)
        with self._stacks.open(errors="replace") as stream:
            stream.seek(before)
            return stream.read() or "the process does not answer signals"

    def _served(self, name: str) -> object:
        if name == OUTSIDE and self._outside is not None:
            return self._outside
        raise PluginError(f"there is no worker {name} in the engine's process")


async def _wait_for_exit(pid: int) -> None:
    """Return once the child has ended, and leave it to be reaped."""
    ended = asyncio.Event()
    watched = exit_descriptor(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(watched, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


def _last_word(lines: Sequence[str]) -> str:
    """The line to show of what a process said last: that of an uncaught exception, whose text may go on below it."""
    if any(line.startswith("Traceback ") for line in lines):
        return next((line for line in reversed(lines) if _RAISED.match(line)), lines[-1])
    return lines[-1]


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
