"""Ray's calls as an event loop can have them: none blocks it, each has a deadline, a cancelled one is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def aside(deadline_s: float, call: Callable[..., T], *args: Any) -> T:
    """The result of a blocking call, made in a daemon thread: one that hangs holds up neither the loop nor the end of
    the process. TimeoutError where it takes longer."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def settle(how: Callable[[Any], None], value: Any) -> None:
        if not found.done():
            how(value)

    def run() -> None:
        try:
            outcome = found.set_result, call(*args)
        except BaseException as error:
            outcome = found.set_exception, error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name=getattr(call, "__name__", "aside"), daemon=True).start()
    async with asyncio.timeout(deadline_s):
        return await found


async def asked(method: Any, *args: Any) -> bytes:
    """The answer of an actor's method. Ray's own exceptions come out where actor, host or cluster is gone."""
    import ray

    ref = method.remote(*args)
    try:
        return await ref
    except asyncio.CancelledError:
        ray.cancel(ref)
        raise
