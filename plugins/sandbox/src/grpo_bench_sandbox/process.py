"""Sandboxes that are none: commands of this user in a copy of the task's folder.

For toy tasks whose every program is trusted, on machines that allow nothing better. Limits of time, CPU, memory and
file size hold as far as a program lets them; the host's files and network are open, and a program that leaves its
session outlives its command. Nothing can be mounted, so no agent that is a program can live here.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_bench.contract import Entry, ExecResult, PlanError, Program
from grpo_bench.processes import start_process
from grpo_bench.scratch import Scratch

from .limits import Limits
from .running import collect
from .spec import SandboxError, SandboxSpec

_DRAIN_S = 10.0
_GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


class Process:
    """The backend."""

    name = "process"
    can_join = False

    async def open(self, spec: SandboxSpec, limits: Limits) -> ProcessSandbox:
        if spec.source is None or spec.image.root != "host":
            raise PlanError("backend 'process' runs on this machine's own files, so it takes no image with a root")
        if spec.sockets:
            raise PlanError("backend 'process' has no place for sockets: agents that are programs need a real sandbox")
        scratch = Scratch()
        folder = scratch.path
        try:
            await asyncio.to_thread(shutil.copytree, spec.source, folder / "work", symlinks=True)
            await asyncio.to_thread(shutil.copytree, folder / "work" / ".git", folder / "pristine", symlinks=True)
            for inside, host in {**spec.image.binds, **spec.mounts}.items():
                _link(folder / "work", spec.workdir, inside, host)
        except BaseException:
            scratch.remove()
            raise
        return ProcessSandbox(spec, limits, scratch)

    def facts(self, limits: Limits) -> Mapping[str, Any]:
        return {"isolation": "NONE: trusted code only, it runs as this user and sees the host's files and network",
                "limits": {"CPU time": "rlimit", "file size": "rlimit", "memory": "address space of each process"}}


class ProcessSandbox:
    """The contract's ProgramSandbox, without a way in."""

    def __init__(self, spec: SandboxSpec, limits: Limits, scratch: Scratch) -> None:
        self._spec, self._limits, self._scratch, self._folder = spec, limits, scratch, scratch.path
        self._work = self._folder / "work"

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        try:
            process = await start_process(
                *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                cwd=self._work, env=self._environment(), start_new_session=True, preexec_fn=self._limit)
        except (OSError, ValueError) as error:
            return ExecResult(127, "", f"{argv[0]}: {error}\n")
        streams = [asyncio.ensure_future(collect(stream, self._limits.output_bytes))
                   for stream in (process.stdout, process.stderr) if stream is not None]
        feeding = asyncio.ensure_future(_feed(process, stdin.encode(errors="surrogateescape")))
        try:
            late = await _lasts(process, timeout_s)
            if late:
                _signal(process, signal.SIGTERM)
                await _lasts(process, self._limits.grace_s)
            _signal(process, signal.SIGKILL)
            async with asyncio.timeout(_DRAIN_S):
                out, err = (text.decode(errors="replace") for text in await asyncio.gather(*streams))
        except TimeoutError:
            raise SandboxError(f"{argv[0]} left a program behind that holds its output") from None
        finally:
            _signal(process, signal.SIGKILL)
            for task in (feeding, *streams):
                task.cancel()
        code = await process.wait()
        return ExecResult(124, out, err, True) if late else ExecResult(code if code >= 0 else 128 - code, out, err)

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"") -> Program:
        raise SandboxError("backend 'process' shuts nothing in, so no agent that is a program runs here")

    async def entry(self) -> Entry | None:
        return None

    async def read(self, path: str) -> str:
        return self._inside(path).read_text(errors="replace")

    async def write(self, path: str, text: str) -> None:
        target = self._inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    async def diff(self) -> str:
        git = [*_GIT, f"--git-dir={self._folder / 'pristine'}", f"--work-tree={self._work}"]
        for command in (["add", "-A"], ["diff", "--cached", "--binary", "--no-ext-diff", "--no-textconv", "HEAD"]):
            done = await asyncio.to_thread(subprocess.run, [*git, *command], cwd=self._work, capture_output=True,
                                           env=self._environment(), stdin=subprocess.DEVNULL)
            if done.returncode:
                raise SandboxError(f"no diff could be made: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="replace")

    async def close(self) -> None:
        await asyncio.to_thread(self._scratch.remove)

    def _inside(self, path: str) -> Path:
        target = (self._work / path).resolve()
        if not target.is_relative_to(self._work.resolve()):
            raise PermissionError(f"{path}: outside the task's folder")
        return target

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder), "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1", **self._spec.env}

    def _limit(self) -> None:
        limits = self._limits
        for kind, value in ((resource.RLIMIT_CPU, limits.cpu_s), (resource.RLIMIT_FSIZE, limits.file_mb << 20),
                            (resource.RLIMIT_AS, limits.memory_mb << 20), (resource.RLIMIT_CORE, 0),
                            (resource.RLIMIT_NOFILE, limits.open_files)):
            _, hard = resource.getrlimit(kind)
            bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (bound, bound))


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _lasts(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Whether it still runs after that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await process.wait()
    return process.returncode is None


def _signal(process: asyncio.subprocess.Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _link(work: Path, workdir: str, inside: str, host: str) -> None:
    """What a sandbox would mount in the working folder is linked to; elsewhere it has to be the host's own."""
    if inside == host:
        return
    if not inside.startswith(f"{workdir}/"):
        raise PlanError(f"backend 'process' cannot show {host} at {inside}")
    target = work / inside.removeprefix(f"{workdir}/")
    if target.is_dir():
        target.rmdir()
    target.symlink_to(host)
