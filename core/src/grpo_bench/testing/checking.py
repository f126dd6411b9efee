"""Running a suite on an installed plugin, in a process of its own that may hang or crash.

The process reports demand by demand. One at which it hangs or dies has failed, and another process goes on with the
rest, so that every demand gets its verdict.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from ..contract import InputError, PluginError
from ..processes import start_process

OK, FAILED, KNOWN, SKIPPED = "ok", "FAILED", "known failure", "skipped"
START_S = 60.0
"""Seconds until the process has begun with its first demand."""
GRACE_S = 30.0
"""Seconds that a demand gets beyond its own time: it ends by itself unless it blocks the event loop."""
_PARTS = 3
"""What makes up a demand, each within ``timeout_s``: opening the rig, the demand itself, closing the rig."""


@dataclass(frozen=True)
class Request:
    """Which suite to run, and how; ``options`` is the plugin's section, ``done`` are demands to leave out."""

    role: str
    name: str
    options: Mapping[str, Any]
    fabric: str
    timeout_s: float
    done: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One demand: its name, how it went, and the reason in one line where it is not ok."""

    name: str
    outcome: str
    reason: str = ""


async def verdicts(request: Request) -> AsyncIterator[Verdict]:
    """The verdict on each demand, as it is reached; PluginError where the suite cannot run at all."""
    done, patience_s = list(request.done), _PARTS * request.timeout_s + GRACE_S
    while True:
        begun = ""
        with tempfile.TemporaryFile("w+") as output:
            async with _process(replace(request, done=tuple(done)), output) as (process, lines):
                while line := await _next(lines, patience_s if begun else START_S):
                    if "wrong" in line:
                        raise InputError(line["wrong"], hint=line["hint"])
                    if "over" in line:
                        return
                    if "begun" in line:
                        begun = line["begun"]
                        continue
                    yield Verdict(**line)
                    done.append(line["name"])
                    begun = ""
                fate = "hangs" if line is None else _fate(await process.wait())
            if not begun:
                raise PluginError(f"the suite of {request.role} {request.name!r} {fate}: {_tail(output)}")
        yield Verdict(begun, FAILED, f"the process {fate}" if line is not None else
                      f"hangs: the process does not respond after {patience_s:g} s")
        done.append(begun)


@asynccontextmanager
async def _process(request: Request, output: IO[str]) -> AsyncIterator[
        tuple[asyncio.subprocess.Process, asyncio.StreamReader]]:
    reading, writing = os.pipe()
    arguments = ["-m", "grpo_bench.testing", json.dumps(asdict(request)), str(writing)]
    process = await start_process(
        sys.executable, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
        pass_fds=[writing], start_new_session=True)
    os.close(writing)
    lines = asyncio.StreamReader()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb"))
    try:
        yield process, lines
    finally:
        pipe.close()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await process.wait()


async def _next(lines: asyncio.StreamReader, patience_s: float) -> dict[str, Any] | None:
    """The next report, empty at the end; None where none comes."""
    try:
        async with asyncio.timeout(patience_s):
            line = await lines.readline()
    except TimeoutError:
        return None
    return json.loads(line) if line.endswith(b"\n") else {}


def _fate(code: int) -> str:
    """How a process ended before its suite was over."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _tail(output: IO[str]) -> str:
    output.seek(0)
    said = output.read().strip().splitlines()
    return said[-1] if said else "no word of why"
