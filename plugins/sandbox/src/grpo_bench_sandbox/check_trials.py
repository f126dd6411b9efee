"""Attempts to break each limit of a sandbox: what is run inside, and how one tells whether the limit held.

Each is a small Python program that goes past the limit as far as it is let, within bounds that spare the machine where
nothing holds it, and prints how far it came. ``escapes`` runs it and gives what it got away with; None: nothing.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import ExecResult, Sandbox

from .limits import Limits

LIMITS = Limits(memory_mb=128, pids=48, cpu_s=1, file_mb=8, scratch_mb=32, shm_mb=8, open_files=64,
                output_bytes=1 << 16, grace_s=0.3)
"""Those of the sandboxes that are tried: small, so that little is taken where they do not hold."""
_COMMAND_S = 60.0
_GONE_S = 5.0


@dataclass(frozen=True)
class Trial:
    """``limit``: its name among a backend's facts; empty: what a backend that isolates holds at all."""

    name: str
    tried: str
    limit: str
    escapes: Callable[[Sandbox, str], Awaitable[str | None]]


async def _python(sandbox: Sandbox, python: str, code: str, timeout_s: float = _COMMAND_S,
                  mark: str = "") -> ExecResult:
    return await sandbox.exec(["env", f"MARK={mark}", python, "-I", "-S", "-c", code], timeout_s=timeout_s)


def _at_most(code: str, most: int, unit: str) -> Callable[[Sandbox, str], Awaitable[str | None]]:
    """The program prints, as far as it comes, how much it has got; it may be killed for it."""
    async def escapes(sandbox: Sandbox, python: str) -> str | None:
        said = (await _python(sandbox, python, code)).stdout.split()
        if not said:
            return "the program did not start"
        return None if int(said[-1]) <= most else f"got {said[-1]} {unit}, {most} are allowed"

    return escapes


def _nothing(code: str) -> Callable[[Sandbox, str], Awaitable[str | None]]:
    """The program prints what it got away with, and then ``tried``."""
    async def escapes(sandbox: Sandbox, python: str) -> str | None:
        result = await _python(sandbox, python, code)
        *found, last = result.stdout.split("\n")[:-1] or [""]
        return "; ".join(found) or None if last == "tried" else f"the program failed: {result.stderr.strip()[-200:]}"

    return escapes


_MEMORY = """
import os, signal, time
print(0, flush=True)
made = []
for _ in range(8):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        held = b"x" * (40 << 20)
        os.write(writing, b"h")
        time.sleep(900)
    made.append(child)
    os.close(writing)
    os.read(reading, 1)
time.sleep(1)
alive = [child for child in made if os.waitpid(child, os.WNOHANG)[0] == 0]
print(40 * len(alive))
for child in alive:
    os.kill(child, signal.SIGKILL)
"""
_PROCESSES = """
import os, signal, time
made = []
try:
    while len(made) < 300:
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        made.append(child)
except OSError:
    pass
print(len(made) + 1)
for child in made:
    os.kill(child, signal.SIGKILL)
"""
_FILL = """
import os
made = 0
try:
    for number in range(32):
        with open("{place}/" + str(number), "wb", buffering=0) as file:
            for _ in range(4):
                if file.write(bytes(1 << 20)) == 1 << 20: made += 1
except OSError:
    pass
for number in range(32):
    if os.path.exists("{place}/" + str(number)): os.unlink("{place}/" + str(number))
print(made)
"""
_FILE_SIZE = """
import os
made = 0
try:
    with open("large", "wb", buffering=0) as file:
        for _ in range(24):
            if file.write(bytes(1 << 20)) == 1 << 20: made += 1
except OSError:
    pass
os.unlink("large")
print(made)
"""
_OPEN_FILES = """
import os
held = 3
try:
    while held < 400: os.open("/dev/null", os.O_RDONLY); held += 1
except OSError:
    pass
print(held)
"""
_RIGHTS = """
import os, subprocess
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
for name in ("CapEff", "CapPrm", "CapInh", "CapBnd"):
    if int(status[name], 16) and name != "CapBnd": print(name, "is", status[name].strip())
if status["NoNewPrivs"].strip() != "1": print("may gain privileges")
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/dev/mem", "/dev/kmsg"):
    try:
        os.close(os.open(path, os.O_WRONLY)); print("opened", path)
    except OSError:
        pass
print("tried")
"""
_TRACE = """
import ctypes, os
libc = ctypes.CDLL(None)
seen = [int(name) for name in os.listdir("/proc") if name.isdigit()]
if len(seen) > 8: print("sees", len(seen), "processes")
if {pid} in seen and libc.ptrace(16, {pid}, None, None) == 0: print("attached to the host's")
try:
    os.kill({pid}, 0); print("may send signals to the host's")
except OSError:
    pass
print("tried")
"""
_NAMESPACES = """
import ctypes, os
host = {host}
for name, there in host.items():
    if os.readlink("/proc/self/ns/" + name) == there: print("shares the host's", name)
child = os.fork()
if child == 0:
    os._exit(0 if ctypes.CDLL(None).unshare(0x10000000) == 0 else 1)
if os.waitpid(child, 0)[1] == 0: print("made a user namespace")
print("tried")
"""
_NETWORK = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_UNIX, "\\0{abstract}")):
    with socket.socket(family, socket.SOCK_STREAM) as to:
        to.settimeout(2)
        try:
            to.connect(address); print("connected to", "the host" if family == socket.AF_INET else "an abstract socket")
        except OSError:
            pass
if any(name != "lo" for _, name in socket.if_nameindex()): print("has network interfaces")
print("tried")
"""
_HOST_FILES = """
import os
for path, mode in (("{mark}", os.O_RDONLY), ("{mark}", os.O_WRONLY), ("/etc/shadow", os.O_RDONLY),
                   ("/usr/bin/env", os.O_WRONLY)):
    try:
        os.close(os.open(path, mode)); print("opened", path)
    except OSError:
        pass
print("tried")
"""
_STAYS = """
import os, signal, sys, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        nothing = os.open("/dev/null", os.O_RDWR)
        for descriptor in range(3): os.dup2(nothing, descriptor)
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("started", flush=True)
if {waits}: time.sleep(60)
"""


async def _cpu(sandbox: Sandbox, python: str) -> str | None:
    result = await _python(sandbox, python, "while True: pass")
    return "still computing at the end of its time" if result.timed_out else None


async def _output(sandbox: Sandbox, python: str) -> str | None:
    result = await _python(sandbox, python, "print('x' * (1 << 20))")
    return f"{len(result.stdout)} bytes were kept" if len(result.stdout) > LIMITS.output_bytes + 200 else None


def _stays(*, waits: bool) -> Callable[[Sandbox, str], Awaitable[str | None]]:
    """Whether processes outlive the command: one that is ended for its time, or one that ends by itself."""
    async def escapes(sandbox: Sandbox, python: str) -> str | None:
        mark = secrets.token_hex(12)
        try:
            result = await _python(sandbox, python, _STAYS.format(waits=waits), 1.5 if waits else _COMMAND_S, mark)
            if not result.timed_out and (waits or "started" not in result.stdout):
                return f"the program failed: {result.stderr.strip()[-200:]}"
            async with asyncio.timeout(_GONE_S):
                while marked(mark):  # noqa: ASYNC110 - the kernel tells nobody
                    await asyncio.sleep(0.05)
        except TimeoutError:
            left = marked(mark)
            for pid in left:
                os.kill(pid, 9)
            return f"{len(left)} processes were left"
        return None

    return escapes


async def _user(sandbox: Sandbox, python: str) -> str | None:
    """Whose the processes are, seen from the host."""
    mark = secrets.token_hex(12)
    running = asyncio.ensure_future(_python(sandbox, python, "import time; time.sleep(1.5)", mark=mark))
    users: set[int] = set()
    while not running.done():
        users |= owners(mark)
        await asyncio.sleep(0.1)
    await running
    if not users:
        return "the program was not seen"
    return "runs as root of the host" if users == {0} else None


def owners(mark: str) -> set[int]:
    found = set()
    for pid in marked(mark):
        with suppress(OSError):
            found.add(os.stat(f"/proc/{pid}").st_uid)
    return found


def marked(mark: str) -> list[int]:
    """The processes of this machine with a mark in their environment."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and f"MARK={mark}\0".encode() in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def open_to_all(folder: Path) -> Path:
    """A file of the host that only a sandbox can keep anyone from."""
    folder.chmod(0o755)
    mark = folder / "mark"
    mark.write_text("of the host")
    mark.chmod(0o666)
    return mark


@asynccontextmanager
async def trials() -> AsyncIterator[tuple[Trial, ...]]:
    """All of them, with what they aim at on this host standing ready."""
    name = f"grpo-bench-check-{secrets.token_hex(8)}"
    host = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ("user", "mnt", "pid", "net", "ipc", "uts")}
    with (tempfile.TemporaryDirectory(prefix="grpo-bench-check-") as folder, socket.socket() as tcp,
          socket.socket(socket.AF_UNIX) as unix):
        mark = open_to_all(Path(folder))
        tcp.bind(("127.0.0.1", 0))
        unix.bind(f"\0{name}")
        for server in (tcp, unix):
            server.listen()
        victim = await asyncio.create_subprocess_exec("sleep", "900")
        try:
            yield (
                Trial("memory", "8 processes of 40 MiB", "memory", _at_most(_MEMORY, LIMITS.memory_mb, "MiB")),
                Trial("processes", "300 forks", "processes", _at_most(_PROCESSES, LIMITS.pids, "processes")),
                Trial("disk", "128 MiB of files in /tmp", "files",
                      _at_most(_FILL.format(place="/tmp"), LIMITS.scratch_mb, "MiB")),
                Trial("shared memory", "128 MiB in /dev/shm", "shared memory",
                      _at_most(_FILL.format(place="/dev/shm"), LIMITS.shm_mb, "MiB")),
                Trial("file size", "a file of 24 MiB", "file size", _at_most(_FILE_SIZE, LIMITS.file_mb, "MiB")),
                Trial("CPU time", "a loop without end", "CPU time", _cpu),
                Trial("open files", "400 open files", "open files", _at_most(_OPEN_FILES, LIMITS.open_files, "files")),
                Trial("output", "1 MiB of output", "output", _output),
                Trial("network", "connections to the host, by TCP and an abstract socket", "",
                      _nothing(_NETWORK.format(port=tcp.getsockname()[1], abstract=name))),
                Trial("host files", "reading and writing files of the host", "",
                      _nothing(_HOST_FILES.format(mark=mark))),
                Trial("time-out", "children in sessions of their own that ignore SIGTERM", "", _stays(waits=True)),
                Trial("daemons", "children that outlive their command", "", _stays(waits=False)),
                Trial("user", "being root on the host", "", _user),
                Trial("rights", "capabilities, new privileges, settings of the kernel", "", _nothing(_RIGHTS)),
                Trial("namespaces", "sharing the host's, making others", "", _nothing(_NAMESPACES.format(host=host))),
                Trial("ptrace", "seeing, tracing, signalling processes of the host", "",
                      _nothing(_TRACE.format(pid=victim.pid))),
            )
        finally:
            victim.kill()
            await victim.wait()
