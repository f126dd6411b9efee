"""Says what everybody waits for when nothing has moved for a while. It reports; the deadlines at every hop decide.

A spell without progress is reported when it has lasted as long as the profile's patience, then each time it has become
twice as long: as an event, in the engine's log, and in one line to the user. Progress is an event of the run. A thread
sees to the one thing that no task can see: an event loop that does not turn.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..contract import Kind
from ..fabric import task_stacks
from .recorder import Recorder

Describe = Callable[[], Awaitable[dict[str, Any]]]
_SHOWN = 3
_LOOKS = 4
"""How often the thread looks during the patience."""


async def watch(recorder: Recorder, clock: Any, patience_s: float, describe: Describe, logger: Any) -> None:
    """Emit a STALL event whenever a spell without progress has lasted long enough, until cancelled."""
    since, due_s = recorder.moved_at, patience_s
    while True:
        await asyncio.sleep(min(max(since + due_s - clock.monotonic(), 0.001), patience_s))
        if recorder.moved_at != since:
            since, due_s = recorder.moved_at, patience_s
        elif clock.monotonic() - since >= due_s:
            due_s *= 2
            await _report(recorder, clock.monotonic() - since, describe, logger)


async def _report(recorder: Recorder, seconds: float, describe: Describe, logger: Any) -> None:
    try:
        facts = await describe()
    except Exception as error:
        facts = {"waiting": f"unknown ({error!r})", "stacks": {}}
    stacks = {**facts["stacks"], "engine": task_stacks()}
    message = in_words(seconds, recorder.step, facts["waiting"])
    logger.warning("stalled", message=message, waiting=facts["waiting"], stacks=stacks)
    recorder.emit(Kind.STALL, progress=False, seconds=seconds, message=message, waiting=facts["waiting"], stacks=stacks)


def in_words(seconds: float, step: int | None, waiting: Any) -> str:
    """One line: since when, in which phase, and the rollouts that have waited longest."""
    message = f"nothing has moved for {seconds:.0f} s"
    if not isinstance(waiting, Mapping):
        return f"{message}: {waiting}"
    message += f" in phase {waiting['phase']}" + (f" of step {step}" if step else "")
    workers: list[Any] = waiting.get("rollouts", [])
    rollouts = [(rollout["seconds"], name, rollout) for worker in workers if isinstance(worker, Mapping)
                for name, rollout in worker.items()]
    silent = [f"rollout worker {rank} does not answer" for rank, worker in enumerate(workers)
              if not isinstance(worker, Mapping)]
    longest = [f"{name} (task {rollout['task']}) at {rollout['hop']} for {waited:.0f} s"
               for waited, name, rollout in sorted(rollouts, key=lambda item: -item[0])[:_SHOWN]]
    said = [f"waiting for {len(rollouts)} rollouts: " + ", ".join(longest)] if longest else []
    return "; ".join([message, *said, *silent, "stacks are in engine.log"])


@contextmanager
def turning(patience_s: float, logger: Any) -> Iterator[None]:
    """Report, from a thread, where the engine's event loop is stuck when it has not turned for ``patience_s``."""
    turned, over = threading.Event(), threading.Event()
    loop, engine = asyncio.get_running_loop(), threading.get_ident()
    thread = threading.Thread(target=_look, args=(loop, engine, turned, over, patience_s, logger), name="watchdog",
                              daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _look(loop: asyncio.AbstractEventLoop, engine: int, turned: threading.Event, over: threading.Event,
          patience_s: float, logger: Any) -> None:
    missed, due = 0, _LOOKS
    turned.set()
    while True:
        if turned.is_set():
            missed, due = 0, _LOOKS
            turned.clear()
            loop.call_soon_threadsafe(turned.set)
        if over.wait(patience_s / _LOOKS):
            return
        missed += 1
        if missed >= due and not turned.is_set():
            due *= 2
            frame = sys._current_frames().get(engine)
            stack = "".join(traceback.format_stack(frame))
            message = (f"the engine has been stuck in one call for {missed * patience_s / _LOOKS:.0f} s; "
                       "its stack is in engine.log")
            logger.warning("stuck", message=message, stacks={"engine": stack})
            print(f"stalled: {message}", file=sys.stderr, flush=True)
