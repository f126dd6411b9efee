"""What the worker processes of one machine have in common: folders, surroundings, and the account of them all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from grpo_bench.contract import GroupSpec, Placement
from grpo_bench.scratch import Scratch

from ._foreign import carried
from ._proc import table
from ._process import HostProcess

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
            "VECLIB_MAXIMUM_THREADS")
LOOPBACK = "127.0.0.1"


class Dated(Protocol):
    """What a station needs of a clock."""

    def now_utc(self) -> str: ...


def variables(placement: Placement) -> dict[str, str]:
    """What a worker process of this placement starts with beside the environment of its machine."""
    return {**dict.fromkeys(_THREADS, str(placement.threads)), **placement.env}


class Station:
    """``logs`` is the folder for what processes write. Their modules are on ``path``. ``grace_s`` is the time a worker
    has for its ``close``, and its process after SIGTERM. ``place`` names the machine, ``host`` is its address, and
    ``outside`` forwards calls to other places where there are any. ``scratch`` holds sockets and rendezvous folders;
    None: one of its own, made when it is needed."""

    def __init__(self, logs: Path, clock: Dated, *, grace_s: float, path: Sequence[str] = sys.path, place: str = "",
                 host: str = LOOPBACK, outside: object | None = None, scratch: Scratch | None = None) -> None:
        self.logs = logs
        self.clock = clock
        self.grace_s = grace_s
        self.path = path
        self.host = host
        self.outside = outside
        self.processes: list[HostProcess] = []
        self._place = f"{place}:" if place else ""
        self._scratch = scratch

    def endpoint(self, number: int) -> str:
        """Of the machine's seat with this number."""
        return f"{self._place}{self._private() / str(number)}.sock"

    def rendezvous(self, room: str) -> Path:
        folder = self._private() / "rooms" / room  # short: libraries put sockets there
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def empty(self, room: str) -> None:
        shutil.rmtree(self.rendezvous(room), ignore_errors=True)

    def environment(self, spec: GroupSpec) -> dict[str, str]:
        """What a process of this group starts with."""
        env = {**os.environ, **variables(spec.placement)}
        if spec.interpreter not in (None, sys.executable):
            path = [str(self.carried(spec.target)), *filter(None, [env.get("PYTHONPATH")])]
            env["PYTHONPATH"] = os.pathsep.join(path)
        return env

    def carried(self, target: str) -> Path:
        """What goes onto the path of another interpreter for a worker with this target."""
        return carried(self._private() / "packages", target)

    def cpu_seconds(self) -> float:
        """CPU time of all processes and all they started, ended or not."""
        processes = table()
        return sum(process.cpu_seconds(processes) for process in self.processes)

    def clear(self) -> None:
        """Give the private folder back."""
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _private(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.path
