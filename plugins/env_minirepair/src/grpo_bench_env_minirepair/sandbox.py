"""An agent's working copy of a task: files in memory, Python programs run in isolation.

The files never touch a disk; a fork server gets them with each run and forgets them after it. ``exec`` knows one
command, ``python FILE [ARGUMENTS]``. What a run prints is the same every time: it holds no times, no addresses, and
nothing at all where a limit cut it off.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from grpo_bench.contract import ExecResult

from . import patch
from .config import MiniRepairConfig
from .inside.serve import Outcome
from .pool import Pool, Run

_LARGEST = 1 << 20
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_TIMED_OUT, _NOT_FOUND = 124, 127


class MiniRepairSandbox:
    """The contract's Sandbox; paths are relative to the one folder there is."""

    def __init__(self, files: Mapping[str, str], pool: Pool, config: MiniRepairConfig) -> None:
        self._before, self._files = dict(files), dict(files)
        self._pool, self._config = pool, config

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        if len(argv) < 2 or argv[0] not in ("python", "python3") or argv[1].startswith("-"):
            hint = "not found; this sandbox runs `python FILE [ARGUMENTS]` only"
            return ExecResult(_NOT_FOUND, "", f"{' '.join(argv):.80}: {hint}\n")
        path = _normal(argv[1])
        if path not in self._files:
            return ExecResult(2, "", f"python: can't open file '{argv[1]}': No such file\n")
        run = await self._pool.file(self._files, [path, *argv[2:]], stdin, timeout_s)
        return self._result(run)

    async def read(self, path: str) -> str:
        try:
            return self._files[_normal(path)]
        except KeyError:
            raise FileNotFoundError(f"{path}: no such file; there are {', '.join(sorted(self._files))}") from None

    async def write(self, path: str, text: str) -> None:
        name = _normal(path)
        if name.startswith(("/", "..")) or name == ".":
            raise PermissionError(f"{path}: outside the task's folder")
        if sum(map(len, self._files.values())) - len(self._files.get(name, "")) + len(text) > _LARGEST:
            raise OSError(f"{path}: the task's folder holds at most {_LARGEST} characters")
        self._files[name] = text

    async def diff(self) -> str:
        return patch.make(self._before, self._files)

    async def close(self) -> None:
        self._files.clear()

    def _result(self, run: Run) -> ExecResult:
        limits = {Outcome.CPU: f"{self._config.cpu_s:g} seconds of CPU time", Outcome.WALL: "the time it may take",
                  Outcome.OUTPUT: f"{self._config.output_bytes} bytes of output"}
        if run.outcome in limits:
            return ExecResult(_TIMED_OUT if run.outcome is not Outcome.OUTPUT else 137, "",
                              f"stopped: more than {limits[run.outcome]}\n", run.outcome is not Outcome.OUTPUT)
        return ExecResult(run.exit_code, _text(run.output), _text(run.errors))


def _normal(path: str) -> str:
    return posixpath.normpath(path)


def _text(data: bytes) -> str:
    return _ADDRESS.sub("at 0x...", data.decode(errors="replace"))
