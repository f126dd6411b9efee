"""Virtual time: it jumps, ties keep their order, what would need real time is refused."""

import asyncio
import os
import time

import pytest

from grpo_bench.engine import RealClock, VirtualDeadlock, run_virtual


def test_an_hour_of_sleeping_passes_at_once_and_time_outs_follow():
    async def main(clock):
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.Event().wait()
        return clock.monotonic(), clock.now_utc()

    started = time.process_time()
    assert run_virtual(main) == (3660.0, "2000-01-01T01:01:00.000000+00:00")
    assert time.process_time() - started < 60


def test_timers_of_one_instant_fire_in_the_order_they_were_set():
    async def main(clock):
        order = []
        loop = asyncio.get_running_loop()
        for number in range(100):
            loop.call_at(5.0, order.append, number)
        await asyncio.sleep(6)
        return order

    assert run_virtual(main) == list(range(100))


def test_waiting_for_nothing_is_an_error_instead_of_a_hang():
    async def main(clock):
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlock):
        run_virtual(main)


def test_threads_and_subprocesses_are_refused():
    async def thread(clock):
        await asyncio.to_thread(os.getpid)

    async def process(clock):
        await asyncio.create_subprocess_exec("true")

    with pytest.raises(RuntimeError, match="no threads"):
        run_virtual(thread)
    with pytest.raises(NotImplementedError):
        run_virtual(process)


def test_the_real_clock_knows_when_the_process_began():
    clock = RealClock()
    before = clock.since_process_start()
    assert 0 < before < 3600 * 24
    assert clock.since_process_start() >= before
