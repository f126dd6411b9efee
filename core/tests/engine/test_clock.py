"""Virtual time: it jumps, ties keep their order, what would need real time is refused."""

import asyncio
import threading
import time

import pytest

from grpo_bench.engine import RealClock, VirtualDeadlock, run_virtual
from grpo_bench.engine.clock import LaterClock, aside, disagreements, run_real


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


def test_timers_fire_where_floats_are_further_apart_than_the_clocks_resolution():
    async def main(clock):
        await asyncio.sleep(2.0**40)
        await asyncio.sleep(1)
        return clock.monotonic()

    assert run_virtual(main) == 2.0**40 + 1


def test_waiting_for_nothing_is_an_error_instead_of_a_hang():
    async def main(clock):
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlock):
        run_virtual(main)


def test_the_real_clock_knows_when_the_process_began():
    clock = RealClock()
    before = clock.since_process_start()
    assert 0 < before < 3600 * 24
    assert clock.since_process_start() >= before


@pytest.mark.parametrize(("phases", "wall_s", "elapsed_s", "process_s", "found"), [
    ({"rollout": 3.0, "update": 1.0}, 4.0, 4.0, 4.04, []),
    ({"rollout": 3.0, "update": 0.9}, 4.0, 4.0, 4.0,
     ["the phases add up to 3.900 s where 4.000 s have passed: -0.100 s"]),
    ({"rollout": 4.0}, 4.0, 4.0, 9.5, ["the run's clock says 4.000 s where 9.500 s have passed: -5.500 s"]),
    ({"rollout": 10_000.0}, 10_000.0, 10_000.0, 10_009.0, []),
])
def test_an_account_of_time_that_does_not_add_up_is_said_with_its_amount(phases, wall_s, elapsed_s, process_s, found):
    assert disagreements({"ledger": phases, "wall_s": wall_s}, elapsed_s, process_s) == found


def test_tasks_that_a_run_leaves_behind_are_ended(monkeypatch):
    monkeypatch.setattr("grpo_bench.engine.clock._LEFT_S", 0.05)
    ends = []

    async def stubborn():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ends.append("ended")

    async def main(clock):
        kept.append(asyncio.create_task(stubborn()))
        await asyncio.sleep(0)
        return clock.monotonic() > 0

    kept = []
    assert run_real(main)
    assert ends == ["ended"]


def test_a_later_clock_counts_from_when_it_was_made():
    async def main(clock):
        await asyncio.sleep(5)
        later = LaterClock(clock)
        await asyncio.sleep(2)
        return later.since_process_start(), later.monotonic(), later.cpu_seconds(), later.now_utc() == clock.now_utc()

    assert run_virtual(main) == (2.0, 7.0, 0.0, True)


def test_work_that_is_done_aside_lets_the_loop_turn():
    async def main(clock):
        turned = threading.Event()
        asyncio.get_running_loop().call_soon(turned.set)
        return await aside(lambda: turned.wait(10))

    assert run_real(main)


def test_virtual_time_does_it_at_once():
    assert run_virtual(lambda clock: aside(threading.get_ident)) == threading.get_ident()
