"""A working copy whose files are kept in memory. Its one command, ``check``, tries the answer on the case that the
agent was told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_bench.contract import ExecResult

from . import diffs
from .evaluate import Evaluator
from .tasks import COMMAND, FILE


class KataSandbox:
    def __init__(self, files: Mapping[str, str], shown: Mapping[str, Any], evaluator: Evaluator) -> None:
        self._before = dict(files)
        self._files = dict(files)
        self._shown = shown
        self._evaluator = evaluator

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        """Run a command to its end."""
        if list(argv) != [COMMAND]:
            return ExecResult(127, "", f"{' '.join(argv):.80}: not found; there is {COMMAND}\n")
        values = await self._evaluator.values(self._files.get(FILE, ""), [self._shown["given"]],
                                              limit_s=timeout_s)
        if values is None:
            return ExecResult(124, "", "stopped at its limit\n", timed_out=True)
        wanted = json.dumps(self._shown["value"], sort_keys=True)
        return ExecResult(0, "right\n", "") if values == [wanted] else ExecResult(1, "", f"{values[0]}, not {wanted}\n")

    async def read(self, path: str) -> str:
        """A file's text; FileNotFoundError where there is none."""
        if path not in self._files:
            raise FileNotFoundError(f"{path}: no such file; there is {', '.join(sorted(self._files))}")
        return self._files[path]

    async def write(self, path: str, text: str) -> None:
        """Make or replace a file."""
        self._files[path] = text

    async def diff(self) -> str:
        """Unified diff from the first state to now; empty where nothing changed."""
        return "".join(diffs.make(path, self._before.get(path, ""), text) for path, text in sorted(self._files.items()))

    async def close(self) -> None:
        """Drop the copy; closing twice is fine."""
        self._files = {}
