"""The fork server: one request at a time, one forked child each.

A request is a header (sizes and limits) and a body that only the child unpacks; a reply is a header and what the child
wrote. Limits: CPU time by a profiling timer in the child with the kernel's own limit behind it, address space, no file
growth, few descriptors, no processes, output by killing at the cap, wall time by an alarm here. After a run everything
that is left in the server's process namespace is killed, and the buffers are wiped, so that no child finds anything of
an earlier run in the memory it inherits. Reading end of file on the requests ends the server.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import struct
from enum import IntEnum

from . import candidate, kernel, seccomp

REQUEST = struct.Struct("<?IddQI")
"""Whether to call a function rather than run a file, bytes of the body; limits: CPU seconds, wall seconds, bytes of
address space, bytes of output per stream."""
REPLY = struct.Struct("<BiII")
"""Outcome, exit code (128 + signal where one ended the child), bytes of stdout (or results), bytes of stderr."""


_Pipes = tuple[tuple[int, int], tuple[int, int]]


class Outcome(IntEnum):
    """How a run ended."""

    EXITED = 0
    CPU = 1
    WALL = 2
    OUTPUT = 3
    INFRASTRUCTURE = 4


class Server:
    """``alone``: the server is process 1 of a namespace of its own, so that killing everything is killing the run."""

    def __init__(self, requests: int, replies: int, null: int, guard: seccomp.Filter | None, alone: bool) -> None:
        self._requests, self._replies, self._null = requests, replies, null
        self._filter, self._alone = guard, alone
        self._body, self._streams = bytearray(), (bytearray(), bytearray())
        self._child = 0
        self._outcome = Outcome.EXITED

    def run(self) -> None:
        """Serve until the other side closes its end."""
        signal.signal(signal.SIGALRM, self._on_alarm)
        gc.collect()
        gc.disable()
        gc.freeze()
        head = bytearray(REQUEST.size)
        while self._fill(memoryview(head)):
            calls, size, cpu_s, wall_s, memory, output = REQUEST.unpack(head)
            self._body.extend(bytes(max(0, size - len(self._body))))
            with memoryview(self._body) as body, body[:size] as part:
                if not self._fill(part):
                    return
                for stream in self._streams:
                    stream.extend(bytes(max(0, output + 1 - len(stream))))
                self._answer(calls, part, cpu_s, wall_s, memory, output)
                part[:] = bytes(size)

    def _fill(self, view: memoryview) -> bool:
        while view:
            count = os.readv(self._requests, [view])
            if not count:
                return False
            view = view[count:]
        return True

    def _answer(self, calls: bool, body: memoryview, cpu_s: float, wall_s: float, memory: int, output: int) -> None:
        self._outcome = Outcome.EXITED
        pipes = os.pipe(), os.pipe()
        try:
            self._child = os.fork()
        except OSError as error:
            self._close(pipes)
            message = f"fork: {error.strerror}".encode()
            self._send(REPLY.pack(Outcome.INFRASTRUCTURE, -1, 0, len(message)), memoryview(message))
            return
        if not self._child:
            self._run_child(pipes, calls, body, cpu_s, memory)
        for _, write in pipes:
            os.close(write)
        signal.setitimer(signal.ITIMER_REAL, wall_s)
        used = self._collect([read for read, _ in pipes], output)
        exit_code = self._reap(cpu_s)
        for read, _ in pipes:
            os.close(read)
        with memoryview(self._streams[0]) as out, memoryview(self._streams[1]) as err:
            sizes = [min(count, output) for count in used]
            self._send(REPLY.pack(self._outcome, exit_code, *sizes), out[:sizes[0]], err[:sizes[1]])
            out[:used[0]], err[:used[1]] = bytes(used[0]), bytes(used[1])

    def _run_child(self, pipes: _Pipes, calls: bool, body: memoryview, cpu_s: float, memory: int) -> None:
        code = 70
        try:
            (_, out), (_, err) = pipes
            os.setsid()
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(self._null, 0)
            os.dup2(self._null if calls else out, 1)
            os.dup2(self._null if calls else err, 2)
            if calls:
                os.dup2(out, candidate.RESULTS_FD)
            os.closerange(candidate.RESULTS_FD + calls, 64)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            whole = int(cpu_s) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (whole, whole))
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            gc.enable()
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            if self._filter:
                self._filter.install()
            code = candidate.run(calls, body)
        finally:
            os._exit(code)

    def _collect(self, ends: list[int], output: int) -> list[int]:
        """Read both streams to their ends, or up to the cap, beyond which the run is killed; bytes read of each."""
        used = [0] * len(ends)
        poll = select.poll()
        for end in ends:
            poll.register(end, select.POLLIN)
        open_ends = set(ends)
        while open_ends:
            for end, _ in poll.poll():
                which = ends.index(end)
                with memoryview(self._streams[which]) as view:
                    count = os.readv(end, [view[used[which]:output + 1]])
                used[which] += count
                if used[which] > output:
                    self._outcome = self._outcome or Outcome.OUTPUT
                    self._kill()
                if not count or used[which] > output:
                    poll.unregister(end)
                    open_ends.discard(end)
        return used

    def _reap(self, cpu_s: float) -> int:
        """Wait for the child, clear away whatever it left, and say how it ended."""
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._kill()
        _, status, usage = os.wait4(self._child, 0)
        self._child = 0
        while self._alone:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                break
        if not os.WIFSIGNALED(status):
            return os.WEXITSTATUS(status)
        number = os.WTERMSIG(status)
        if self._outcome is Outcome.EXITED:
            if number in (signal.SIGPROF, signal.SIGXCPU) or usage.ru_utime + usage.ru_stime >= cpu_s:
                self._outcome = Outcome.CPU
            elif number == signal.SIGKILL and self._filter:
                self._outcome = Outcome.INFRASTRUCTURE
        return 128 + number

    def _kill(self) -> None:
        targets = [(os.kill, -1)] if self._alone else [(os.killpg, self._child), (os.kill, self._child)]
        for send, target in targets:
            try:
                send(target, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def _on_alarm(self, number: int, frame: object) -> None:
        if self._child:
            self._outcome = self._outcome or Outcome.WALL
            self._kill()

    def _send(self, *parts: bytes | memoryview) -> None:
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(self._replies, view):]

    @staticmethod
    def _close(pipes: _Pipes) -> None:
        for pair in pipes:
            for end in pair:
                os.close(end)


def limit_server() -> None:
    """Limits that the server lives under itself and every child inherits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
