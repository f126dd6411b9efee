"""Time. The only place that reads a clock.

A run's event loop is its clock: ``asyncio.sleep`` and ``asyncio.timeout`` follow ``loop.time()``. With the real loop
that is the monotonic clock; with :class:`VirtualLoop` it is a number that jumps to the next timer whenever nothing is
ready to run, so that an hour of modelled waiting takes as long as its computation. Virtual runs are deterministic:
timers of the same instant fire in the order they were set, and threads, subprocesses and sockets raise where they are
made (see :mod:`.unreal`).
"""

from __future__ import annotations

import asyncio
import heapq
import resource
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ..observers.ledger import apart
from .unreal import refused, without

T = TypeVar("T")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_LEFT_S = 5.0


class RealClock:
    """Monotonic and wall clock of the machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now_utc(self) -> str:
        return datetime.now(UTC).isoformat(timespec="microseconds")

    def since_process_start(self) -> float:
        """Seconds since this process began, to 10 ms; elsewhere than on Linux its CPU time so far."""
        try:
            fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            started = int(fields[19]) / _clock_ticks()
            return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
        except (OSError, IndexError, ValueError, AttributeError):
            return time.process_time()

    def cpu_seconds(self) -> float:
        """CPU time of this process, worker processes and other children left out."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime


class LaterClock:
    """``clock`` as if the process had begun when this was made: for what follows something else in one process and has
    an account of its own."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._began_s = clock.since_process_start()
        self._used_s = clock.cpu_seconds()

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def now_utc(self) -> str:
        return self._clock.now_utc()

    def since_process_start(self) -> float:
        return self._clock.since_process_start() - self._began_s

    def cpu_seconds(self) -> float:
        return self._clock.cpu_seconds() - self._used_s


class VirtualClock:
    """The time of a virtual loop. UTC starts on 2000-01-01, so that nobody takes it for a date."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    def now_utc(self) -> str:
        return (_EPOCH + timedelta(seconds=self._loop.time())).isoformat(timespec="microseconds")

    def since_process_start(self) -> float:
        return self._loop.time()

    def cpu_seconds(self) -> float:
        return 0.0


class VirtualDeadlock(RuntimeError):
    """Everything waits and no timer is set: in real time this would hang for ever."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop without I/O whose time is virtual. Timers lie in a heap by instant, then by the order of setting; a
    cancelled one stays there until its instant."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timers_set = 0
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any,
                context: Context | None = None) -> asyncio.TimerHandle:
        self._timers_set += 1
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._timers_set, timer))
        return timer

    def _run_once(self) -> None:
        """Run what is ready, with the timers that are due; where nothing is, move to the instant of the next timer."""
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        timers = self._timers
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2].cancelled():
                heapq.heappop(timers)
            if not timers:
                raise VirtualDeadlock("every task waits and nothing is scheduled")
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now + self._clock_resolution:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:
        raise refused("threads", "run_in_executor")

    async def subprocess_exec(self, protocol_factory: Any, program: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise refused("subprocesses", "subprocess_exec", program)

    async def subprocess_shell(self, protocol_factory: Any, cmd: Any, **kwargs: Any) -> NoReturn:
        raise refused("subprocesses", "subprocess_shell", cmd)

    async def getaddrinfo(self, host: Any, port: Any, **kwargs: Any) -> NoReturn:
        raise refused("sockets", "getaddrinfo", host)

    async def create_unix_connection(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refused("sockets", "create_unix_connection")

    async def create_unix_server(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise refused("sockets", "create_unix_server")

    def _write_to_self(self) -> None:
        pass


async def aside(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread while the loop turns. In virtual time, which has no threads and in which
    no work takes time, it is done at once."""
    if isinstance(asyncio.get_running_loop(), VirtualLoop):
        return work()
    return await asyncio.to_thread(work)


def disagreements(ending: Mapping[str, Any], elapsed_s: float, process_s: float) -> list[str]:
    """What is wrong with a run's account of its time, in words: phases that do not add up to the whole, or a clock that
    went another way than the system's since the process began. Within 0.1 % or 50 ms both are right."""
    found = []
    for what, part, whole in (("the phases add up to", sum(ending["ledger"].values()), ending["wall_s"]),
                              ("the run's clock says", elapsed_s, process_s)):
        if (missing := apart(part, whole)) is not None:
            found.append(f"{what} {part:.3f} s where {whole:.3f} s have passed: {-missing:+.3f} s")
    return found


def run_real(make: Callable[[RealClock], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine that ``make`` returns on the machine's clock. Tasks that are left are cancelled and have a few
    seconds to end; threads are not waited for."""
    loop = asyncio.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(make(RealClock()))
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_S))
        asyncio.set_event_loop(None)
        loop.close()


def run_virtual(make: Callable[[VirtualClock], Any]) -> Any:
    """Run the coroutine that ``make`` returns under virtual time."""
    loop = VirtualLoop()
    with without(), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(make(VirtualClock(loop)))


def _clock_ticks() -> int:
    import os

    return os.sysconf("SC_CLK_TCK")
