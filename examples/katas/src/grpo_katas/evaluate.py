"""Expressions evaluated in child processes, a few at a time, each under its limits and killed with all it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from . import Config

ISOLATION = "none: child processes of the same user, with limits of CPU time, memory and written bytes"
_CHILD = (sys.executable, "-I", "-S", "-B", str(Path(__file__).parent / "child.py"))
_LONGEST = 65536


class Evaluator:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._places = asyncio.Semaphore(config.parallel)

    async def values(self, expression: str, given: Sequence[Mapping[str, Any]], *,
                     limit_s: float | None = None) -> list[str] | None:
        """What the expression gives for each of ``given``, as JSON or as the name of an exception; None where a limit
        ended it. Leaves no process behind, whether it ends, is late or is cancelled."""
        request = json.dumps({"expression": expression.strip(), "given": given, "cpu_s": self._config.cpu_s})
        async with self._places:
            process = await asyncio.create_subprocess_exec(
                *_CHILD, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, start_new_session=True, env={})
            try:
                async with asyncio.timeout(min(self._config.wall_s, limit_s or self._config.wall_s)):
                    output = await _talk(process, request.encode())
            except TimeoutError:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        lines = output.decode(errors="replace").splitlines()
        return lines if process.returncode == 0 and len(output) < _LONGEST else None


async def _talk(process: asyncio.subprocess.Process, request: bytes) -> bytes:
    """Everything that the process says, up to the longest output."""
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(request)
        await process.stdin.drain()
    process.stdin.close()
    output = b""
    while len(output) < _LONGEST and (part := await process.stdout.read(_LONGEST)):
        output += part
    if len(output) < _LONGEST:
        await process.wait()
    return output
