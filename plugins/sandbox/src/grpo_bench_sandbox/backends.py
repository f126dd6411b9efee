"""Which sandboxes this machine can give, and opening one.

A backend is chosen by name, or the first that works here and can hold the image. ``process`` isolates nothing and is
never chosen by itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Protocol

from grpo_bench.contract import Missing, ProgramSandbox

from .limits import Limits
from .spec import SandboxSpec

BackendName = Literal["auto", "bwrap", "apptainer", "process"]
ORDER = ("bwrap", "apptainer")
"""How ``auto`` chooses."""
_TRY_S = 20


class Backend(Protocol):
    """``can_join``: whether its sandboxes have an ``entry``."""

    @property
    def name(self) -> str: ...

    @property
    def can_join(self) -> bool: ...

    async def open(self, spec: SandboxSpec, limits: Limits) -> ProgramSandbox: ...

    def facts(self, limits: Limits) -> Mapping[str, Any]:
        """For plans: the isolation, and by what each limit is held."""
        ...


class Bwrap:
    """Sandboxes of bubblewrap; see :mod:`.box`."""

    name = "bwrap"
    can_join = True

    async def open(self, spec: SandboxSpec, limits: Limits) -> ProgramSandbox:
        from .box import open_sandbox

        return await open_sandbox(spec, limits)

    def facts(self, limits: Limits) -> Mapping[str, Any]:
        from .cgroups import make_cgroup

        group = make_cgroup(limits)
        group.remove()
        root = os.geteuid() == 0
        memory = "cgroup" if "memory" in group.holds else "address space of each process"
        pids = "cgroup" if "pids" in group.holds else "rlimit of a user of its own" if root else "nothing"
        return {
            "isolation": "bubblewrap: user, mount, pid, network, ipc and uts namespaces, no capabilities, no network",
            "runs as": "an unprivileged user of each sandbox's own" if root else "this user, without capabilities",
            "limits": {"memory": memory, "processes": pids, "files": "tmpfs", "file size": "rlimit",
                       "CPU time": "rlimit", "shared memory": "tmpfs"},
        }


def available() -> dict[str, str | None]:
    """Each backend with None, or why it cannot be used here."""
    return {name: why() for name, why in _OBSTACLES.items()}


def backend(name: BackendName) -> Backend:
    """The backend of that name; Missing where this machine cannot give it."""
    reasons: dict[str, str] = {}
    for tried in ORDER if name == "auto" else (name,):
        reason = _OBSTACLES[tried]()
        if reason is None:
            return _MAKERS[tried]()
        reasons[tried] = reason
    said = "; ".join(f"{tried}: {reason}" for tried, reason in reasons.items())
    raise Missing(f"no sandbox can be made here: {said}", hint="see `grpo-bench sandbox check`")


def _apptainer() -> Backend:
    from .apptainer import Apptainer

    return Apptainer()


def _process() -> Backend:
    from .process import Process

    return Process()


def _without_apptainer() -> str | None:
    from .apptainer import unusable

    return unusable()


@cache
def _without_bwrap() -> str | None:
    path = shutil.which("bwrap")
    if path is None:
        return "bubblewrap is not installed (on Debian or Ubuntu: apt install bubblewrap)"
    command = [path, "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not run: {error}"
    return None if done.returncode == 0 else f"bubblewrap may not make namespaces: {done.stderr.strip()[-200:]}"


_OBSTACLES: Mapping[str, Callable[[], str | None]] = {
    "bwrap": _without_bwrap, "apptainer": _without_apptainer, "process": lambda: None}
_MAKERS: Mapping[str, Callable[[], Backend]] = {"bwrap": Bwrap, "apptainer": _apptainer, "process": _process}
