"""Control groups: how much memory and how many processes a sandbox has altogether, where this process may say so.

A sandbox's group is made below the group of this process, or beside it under version 2, and removed with the
sandbox. Those that a killed process left behind are removed, and what lives in them ended, by whoever makes one next.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .limits import Limits

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "grpo-bench-sandbox-"
_numbers = itertools.count()


@dataclass(frozen=True)
class Cgroup:
    """One sandbox's groups. ``holds`` names what they bound: ``memory``, ``pids``."""

    folders: tuple[Path, ...] = ()
    holds: frozenset[str] = frozenset()

    @property
    def entrances(self) -> tuple[str, ...]:
        """The files a process writes itself into."""
        return tuple(str(folder / "cgroup.procs") for folder in self.folders)

    def remove(self) -> bool:
        """End whoever is left in it and remove it; False where one that has ended is still counted."""
        left = [folder for folder in self.folders if not _drop(folder)]
        return not left


def make_cgroup(limits: Limits) -> Cgroup:
    """A group with these limits, as far as that is permitted."""
    name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    memory = limits.memory_mb << 20
    folders: list[Path] = []
    holds: set[str] = set()
    for base, version in _bases():
        _sweep(base)
        wanted = {"memory": [("memory.max", memory), ("memory.swap.max", 0)], "pids": [("pids.max", limits.pids)]} if (
            version == 2) else {"memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
                                "pids": [("pids.max", limits.pids)]}
        folder = base / name
        try:
            folder.mkdir()
        except OSError:
            continue
        folders.append(folder)
        for kind, values in wanted.items():
            if kind not in holds and _set(folder, values):
                holds.add(kind)
    return Cgroup(tuple(folders), frozenset(holds))


def _drop(folder: Path) -> bool:
    with suppress(OSError):
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
    try:
        folder.rmdir()
    except OSError as error:
        return error.errno != errno.EBUSY
    return True


def _set(folder: Path, values: list[tuple[str, int]]) -> bool:
    """Whether the first of the values could be set; the others are as the kernel has them."""
    done = []
    for name, value in values:
        try:
            (folder / name).write_text(str(value))
            done.append(True)
        except OSError:
            done.append(False)
    return done[0]


def _bases() -> list[tuple[Path, int]]:
    """The groups of this process that can have children with limits."""
    found = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:
            root = next((root for root in (MOUNT, MOUNT / "unified") if (root / "cgroup.controllers").exists()), None)
            if root is not None:
                found += [(base, 2) for base in _delegating(root, root / path.lstrip("/"))]
        elif kinds in ("memory", "pids") and os.access(base := MOUNT / kinds / path.lstrip("/"), os.W_OK):
            found.append((base, 1))
    return found


def _delegating(root: Path, own: Path) -> list[Path]:
    """Where groups of version 2 can be made: in the process's own group or, since one that has processes and is not the
    root can hand out nothing, beside it."""
    return [base for base in (own, own.parent) if base.is_relative_to(root) and _delegates(base)][:1]


def _delegates(base: Path) -> bool:
    """Whether children of a group of version 2 can bound memory and processes."""
    control = base / "cgroup.subtree_control"
    try:
        if not {"memory", "pids"} <= set((base / "cgroup.controllers").read_text().split()):
            return False
        if not {"memory", "pids"} <= set(control.read_text().split()):
            control.write_text("+memory +pids")
    except OSError:
        return False
    return os.access(base, os.W_OK) and os.access(base / "cgroup.procs", os.W_OK)


def _sweep(base: Path) -> None:
    with suppress(OSError):
        for folder in base.glob(f"{PREFIX}*"):
            owner = folder.name.removeprefix(PREFIX).partition("-")[0]
            if owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
                _drop(folder)
