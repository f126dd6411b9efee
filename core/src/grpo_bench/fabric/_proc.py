"""Processes as the kernel lists them: who descends from whom, and the CPU time each has used.

Read from ``/proc``. Where there is none (macOS), live processes are not seen: only ended ones count, and only process
groups are killed. A process is (pid, start tick), so that a pid used again is never mistaken for the one before.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table; ``cpu_s`` includes the children it has waited for."""

    pid: int
    parent: int
    session: int
    started: int
    cpu_s: float


def table() -> dict[int, Process]:
    """All processes by pid; empty without ``/proc``."""
    tick = os.sysconf("SC_CLK_TCK")
    found = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = stat[stat.rindex(")") + 2:].split()
        pid = int(folder.name)
        found[pid] = Process(pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]),
                             cpu_s=sum(map(int, fields[11:15])) / tick)
    return found


def family(root: int, processes: Mapping[int, Process]) -> list[Process]:
    """All descendants of ``root`` and all members of its session, without itself."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found = {process.pid: process for process in processes.values() if process.session == root}
    stack = [root, *found]
    while stack:
        for child in children.get(stack.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                stack.append(child.pid)
    found.pop(root, None)
    return list(found.values())


def kill(processes: Iterable[Process]) -> None:
    """SIGKILL; those that are gone already, or are not ours to kill, are fine."""
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def exit_descriptor(pid: int) -> int:
    """A descriptor that becomes readable when the whole process has ended, with all its threads and what they held;
    whether its parent has reaped it or not."""
    if sys.platform == "linux":
        return os.pidfd_open(pid)
    queue = select.kqueue()
    queue.control([select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)], 0)
    return os.dup(queue.fileno())


def children_cpu_seconds() -> float:
    """CPU time of all descendants of this process, ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = sum(process.cpu_s for process in family(os.getpid(), table()))
    return ended.ru_utime + ended.ru_stime + alive
