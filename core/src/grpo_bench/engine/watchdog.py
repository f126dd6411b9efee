"""Says what everybody waits for when nothing has moved for a while. It reports; the deadlines at every hop decide."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ..contract import Kind
from .recorder import Recorder

Describe = Callable[[], Awaitable[dict[str, Any]]]


async def watch(recorder: Recorder, clock: Any, patience_s: float, describe: Describe) -> None:
    """Emit a STALL event whenever no event counted as progress for ``patience_s`` seconds, until cancelled."""
    reported_at = clock.monotonic()
    while True:
        quiet_since = max(recorder.moved_at, reported_at)
        await asyncio.sleep(max(quiet_since + patience_s - clock.monotonic(), 0.001))
        if clock.monotonic() - max(recorder.moved_at, reported_at) < patience_s:
            continue
        reported_at = clock.monotonic()
        try:
            facts = await describe()
        except Exception as error:
            facts = {"waiting": f"unknown ({error!r})", "stacks": {}}
        recorder.emit(Kind.STALL, progress=False, seconds=clock.monotonic() - recorder.moved_at,
                      waiting=facts["waiting"], stacks={**facts["stacks"], "engine": _task_stacks()})


def _task_stacks() -> str:
    lines = []
    for task in sorted(asyncio.all_tasks(), key=lambda item: item.get_name()):
        frames = [f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" for frame in task.get_stack()]
        lines.append(f"{task.get_name()}: {' < '.join(reversed(frames)) or 'about to run'}")
    return "\n".join(lines)
