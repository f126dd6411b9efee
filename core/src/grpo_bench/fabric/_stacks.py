"""Where the tasks of an event loop wait."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any


def task_stacks() -> str:
    """Every task of the running loop but the current one: its name and where it waits."""
    tasks = sorted(asyncio.all_tasks() - {asyncio.current_task()}, key=lambda task: task.get_name())
    return "".join(map(_stack, tasks))


def _stack(task: asyncio.Task[Any]) -> str:
    """The task's name and where each coroutine it is made of waits, outermost first."""
    frames = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            frames.append((frame, frame.f_lineno))
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    return f"{task.get_name()}:\n{''.join(traceback.StackSummary.extract(frames).format())}"
