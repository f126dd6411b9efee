"""How vLLM's processes end: watched by their sentinels, told with their exit code and what they last put out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

from grpo_bench.contract import PluginError, WorkerLost

_TAIL_BYTES, _TAIL_LINES = 8192, 20
_REAP_S, _REAPS = 0.02, 100


class Watch:
    """``ended`` is set to a WorkerLost when one of the processes has ended without being asked to."""

    def __init__(self, processes: Sequence[Any]) -> None:
        self.pids = [process.pid for process in processes]
        self.ended: asyncio.Future[WorkerLost] = asyncio.get_running_loop().create_future()
        self._watching: list[asyncio.Future[WorkerLost]] = []
        for process in processes:
            self.also(_end_of(process))

    def also(self, end: Awaitable[WorkerLost]) -> None:
        """Take what ``end`` gives for the end as well."""
        watching = asyncio.ensure_future(end)
        watching.add_done_callback(self._over)
        self._watching.append(watching)

    async def stop(self) -> None:
        """What ends from now on was asked to."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _over(self, end: asyncio.Future[WorkerLost]) -> None:
        if not end.cancelled() and not self.ended.done():
            self.ended.set_result(end.result())


async def _end_of(process: Any) -> WorkerLost:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, over.set)
    try:
        await over.wait()
    finally:
        loop.remove_reader(process.sentinel)
    for _ in range(_REAPS):  # vLLM's own thread may be the one that reaps it
        if process.exitcode is not None:
            break
        await asyncio.sleep(_REAP_S)
    last = last_lines()
    error = WorkerLost(f"vLLM's engine process {process.pid} {_ending(process.exitcode)}"
                       + (f"; its last output: {last[-1]}" if last else ""),
                       hint="its output is in the worker's log")
    error.remote_traceback = "\n".join(last)
    return error


def not_started(error: Exception) -> PluginError:
    """The error to raise where vLLM does not start, with its last output."""
    failed = PluginError(f"vLLM's engine does not start: {error}", hint="its output is in the worker's log")
    failed.remote_traceback = "\n".join(last_lines())
    return failed


def _ending(code: int | None) -> str:
    if code is None:
        return "has ended"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def last_lines() -> list[str]:
    """The last lines of the file that this process and its children write their output to, if it is one."""
    path = Path("/proc/self/fd/2")
    if not path.is_file():
        return []
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        lines = stream.read().decode(errors="replace").splitlines()
    return [line for line in lines if line.strip()][-_TAIL_LINES:]
