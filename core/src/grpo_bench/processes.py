"""Child processes of an event loop: started, ended and let go, whatever is cancelled meanwhile.

asyncio's own calls have two traps. A start that is cancelled waits for ever for pipes that nobody connects any more,
and ``wait`` lasts until somebody has read all that the process wrote.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

__all__ = ["exit_code", "let_go", "start_process"]

_POLL_S = 0.02


async def start_process(*argv: str, **options: Any) -> asyncio.subprocess.Process:
    """As ``asyncio.create_subprocess_exec``. Where a cancellation comes meanwhile, the process is there first, and then
    is ended."""
    creating = asyncio.ensure_future(asyncio.create_subprocess_exec(*argv, **options))
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        await _whatever_comes(asyncio.ensure_future(_undone(creating)))
        raise


async def _undone(creating: asyncio.Future[asyncio.subprocess.Process]) -> None:
    """Wait for a start, and end what it started."""
    try:
        process = await creating
    except Exception:
        return
    with suppress(ProcessLookupError):
        process.kill()
    await exit_code(process)
    let_go(process)


async def _whatever_comes(work: asyncio.Future[None]) -> None:
    """Return once it is done, however often that is cancelled."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.shield(work)
    work.result()


async def exit_code(process: asyncio.subprocess.Process) -> int:
    """How a process ended, once it has; negative: the signal that ended it."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait([waiting], timeout=_POLL_S)
    finally:
        waiting.cancel()
    return process.returncode


def let_go(process: asyncio.subprocess.Process) -> None:
    """Close the streams of a process that has ended, whoever has not read them to their end."""
    process._transport.close()  # pyright: ignore[reportAttributeAccessIssue]
