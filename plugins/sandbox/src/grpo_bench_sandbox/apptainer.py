"""Sandboxes of Apptainer, on SIF images.

Every command is a container of its own, started with the flags of the benchmark's reference. The containers of one
sandbox share its files through an overlay that lies on the holder's tmpfs, so a command sees what those before it
wrote, and only one runs at a time: the next one waits. Apptainer itself runs without privileges, as an unprivileged
user of the host where that is root's to choose, in user, network, ipc, uts and pid namespaces made around it. That user
is root inside, without capabilities. The pid namespace ends with the command and takes the whole tree with it, the
programs that serve its file system included. The overlay is always fuse-overlayfs: the kernel's, mounted in a user
namespace the way Apptainer does it, cannot remove a folder that comes from the image.

No process of the host can move into such a container, so there is no entry.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from grpo_bench.contract import Entry, PlanError, ProgramSandbox

from .box import BwrapSandbox
from .bwrap import environment, visible
from .cgroups import Cgroup, make_cgroup
from .holding import INSIDE, PATH, Holder
from .limits import Limits
from .running import Running
from .sif import squashfs_of
from .spec import Image, SandboxError, SandboxSpec

FLAGS = ("--cleanenv", "--pid", "--no-mount", "home,tmp,bind-paths", "--contain", "--no-home", "--no-privs")
"""Those of the reference (which has --writable-tmpfs where this has an overlay that outlives the command), with
nothing of the host's shown and no privileges kept."""
NAMESPACES = ("--user", "--map-root-user", "--net", "--ipc", "--uts", "--mount", "--pid")
PROGRAMS = {"unshare": "util-linux", "bash": "bash", "fuse-overlayfs": "fuse-overlayfs"}
"""What it takes on the host besides Apptainer, and the package that has it."""
_TRY_S = 20


class Apptainer:
    """The backend."""

    name = "apptainer"
    can_join = False

    async def open(self, spec: SandboxSpec, limits: Limits) -> ProgramSandbox:
        if spec.image.root != "sif" or spec.image.path is None:
            raise PlanError(f"backend 'apptainer' runs SIF images, and this one's root is {spec.image.root!r}",
                            hint="use the backend 'bwrap' for it")
        squashfs_of(spec.image.path)
        shown = visible(spec)
        _check(shown)
        files = replace(spec, image=Image("host"))
        sources = [str(spec.image.path.resolve()), *dict.fromkeys(shown.values())]
        holder = await Holder.start(files, limits, {"root": "host"}, sources)
        box = ApptainerSandbox(spec, limits, holder, make_cgroup(limits))
        try:
            await box.prepare()
        except BaseException:
            await asyncio.shield(box.close())
            raise
        return box

    def facts(self, limits: Limits) -> Mapping[str, Any]:
        group = make_cgroup(limits)
        group.remove()
        return {
            "isolation": "apptainer without privileges: user, mount, pid, network, ipc and uts namespaces, no "
                         "capabilities, no network",
            "runs as": "an unprivileged user of each sandbox's own" if os.geteuid() == 0 else "this user",
            "limits": {"memory": "cgroup" if "memory" in group.holds else "address space of each process",
                       "processes": "cgroup" if "pids" in group.holds else "rlimit" if os.geteuid() == 0 else "nothing",
                       "files": "tmpfs", "file size": "rlimit", "CPU time": "rlimit",
                       "shared memory": "with the files"},
        }


class ApptainerSandbox(BwrapSandbox):
    """The sandbox of the other backend, with another way to start a command."""

    def __init__(self, spec: SandboxSpec, limits: Limits, holder: Holder, cgroup: Cgroup) -> None:
        super().__init__(spec, limits, holder, cgroup)
        self._turn = asyncio.Lock()
        self._ends: set[asyncio.Task[None]] = set()

    async def entry(self) -> Entry | None:
        return None

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], *, pristine: bool = False) -> Running:
        await self._turn.acquire()
        try:
            running = await self._launch(argv, env, pristine)
        except BaseException:
            self._turn.release()
            raise
        end = asyncio.ensure_future(self._pass_on(running))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return running

    async def _pass_on(self, running: Running) -> None:
        try:
            await running.wait()
        finally:
            self._turn.release()

    async def _launch(self, argv: Sequence[str], env: Mapping[str, str], pristine: bool) -> Running:
        if self._closed:
            raise SandboxError("the sandbox is closed")
        program, configuration = installed()
        home, script = f"{self._holder.mount}/home", (INSIDE / "contain.sh").read_text()
        return await self._launched(
            lambda status: [shutil.which("unshare") or "unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc",
                            "bash", "-c", script, "contain", str(status), home, configuration, program,
                            *self._arguments(home, env, pristine), *argv],
            path=f"{Path(program).parent}:{PATH}", kind=Contained)

    def _arguments(self, home: str, env: Mapping[str, str], pristine: bool) -> list[str]:
        """Apptainer's command line up to the command, which starts with nothing but its own environment."""
        spec, places = self.spec, self._holder.places
        options = ["--silent", "--config", f"{home}/apptainer.conf", "exec", "--overlay", f"{home}/overlay", *FLAGS]
        options += _shown(f"{home}/shm", "/dev/shm") + _shown(f"{home}/begun", "/run/.begun")
        if spec.source is not None:
            options += _shown(f"{self._holder.mount}/work", spec.workdir)
        if pristine:
            options += _shown(f"{self._holder.mount}/pristine", "/run/pristine")
        for inside, host in sorted(visible(spec).items(), key=lambda item: item[0].count("/")):
            options += _shown(places[host], inside, read_only=True)
        variables = [f"{name}={value}" for name, value in {**environment(spec), "HOME": "/root", **env}.items()]
        return [*options, "--pwd", spec.workdir, places[str((spec.image.path or Path()).resolve())],
                "sh", "-c", 'echo begun >/run/.begun && exec env -i "$@"', "sh", *variables]


class Contained(Running):
    """One command in its container."""

    async def kill(self) -> None:
        """SIGTERM goes to the container's own processes, by way of the namespace's first; with that one all end."""
        first = self.report.get("child-pid") and self._first()
        if first and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_s):
                    await self.wait()
            if self._process.returncode is None:
                with suppress(ProcessLookupError):
                    os.kill(first, signal.SIGKILL)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self.wait()
        self.close()

    def _first(self) -> int | None:
        """The first process of the pid namespace: the only child of the program that made it."""
        pid = self._process.pid
        with suppress(OSError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        return None


def _check(shown: Mapping[str, str]) -> None:
    for inside, host in shown.items():
        if set(inside) & set(',"=\n'):
            raise PlanError(f"backend 'apptainer' cannot show anything at {inside!r}")
        if not os.path.exists(host):
            raise PlanError(f"{host}, which a sandbox should see, does not exist")


def _shown(host: str, inside: str, *, read_only: bool = False) -> list[str]:
    return ["--mount", f"type=bind,source={host},destination={inside}{',ro' if read_only else ''}"]


def unusable() -> str | None:
    """Why there can be no sandboxes of Apptainer here; None where there can."""
    if shutil.which("apptainer") is None:
        return "apptainer is not installed"
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            return f"{program} is not installed (package {package})"
    if shutil.which("squashfuse_ll") is None and shutil.which("squashfuse") is None:
        return "squashfuse is not installed (package squashfuse)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened, and SIF images are mounted through it"
    try:
        installed()
        done = subprocess.run(["unshare", *NAMESPACES, "--fork", "--mount-proc", "true"], capture_output=True,
                              text=True, timeout=_TRY_S, stdin=subprocess.DEVNULL)
    except (OSError, SandboxError, subprocess.SubprocessError) as error:
        return str(error)
    return None if done.returncode == 0 else f"no namespaces may be made: {done.stderr.strip()[-200:]}"


@cache
def installed() -> tuple[str, str]:
    """Apptainer's program, and the file with the configuration that it was installed with."""
    program = shutil.which("apptainer")
    if program is None:
        raise SandboxError("apptainer is not installed")
    done = subprocess.run([program, "buildcfg"], capture_output=True, text=True, timeout=_TRY_S, check=False,
                          stdin=subprocess.DEVNULL)
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        if name == "APPTAINER_CONF_FILE":
            return program, value
    raise SandboxError(f"apptainer does not say where its configuration is: {done.stderr.strip()[-200:]}")
