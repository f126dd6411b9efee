"""What only the inline fabric promises: no copies unless asked, and nothing that a virtual clock could not drive."""

import asyncio
import socket
import subprocess
import threading

import pytest
import structlog

from grpo_bench.contract import PlanError
from grpo_bench.engine.clock import RealClock, run_virtual
from grpo_bench.fabric import InlineFabric


def test_values_are_passed_as_they_are(spec):
    async def main():
        fabric = InlineFabric(RealClock(), structlog.get_logger())
        value = object()
        group = await fabric.start_group(spec(config=value))
        assert await group.call(0, "echo", value) is value
        assert (await group.call(0, "identity"))[3] is value
        await fabric.close()
    asyncio.run(main())


def test_it_runs_under_a_virtual_clock_without_threads_processes_or_sockets(spec, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("not under a virtual clock")
    for owner, name in ((threading.Thread, "start"), (socket, "socket"), (subprocess, "Popen")):
        monkeypatch.setattr(owner, name, refuse)

    async def main(clock):
        fabric = InlineFabric(clock, structlog.get_logger())
        group = await fabric.start_group(spec("sleepers", "fabric_targets:Sleeper", workers=100))
        before = clock.monotonic()
        await group.call_all("sleep", 3600, deadline_s=3601)
        with pytest.raises(Exception, match="took longer than 60 s"):
            await group.call(0, "sleep", 3600, deadline_s=60)
        await fabric.close()
        return clock.monotonic() - before
    assert run_virtual(main) == 3660


def test_an_interpreter_of_its_own_is_refused(in_inline, spec):
    async def body(fabric):
        with pytest.raises(PlanError, match="use the fabric 'local'"):
            await fabric.start_group(spec(interpreter="/usr/bin/python3"))
    in_inline(body)


def test_cpu_time_is_that_of_this_process_children(in_inline, spec):
    async def body(fabric):
        group = await fabric.start_group(spec())
        start = await fabric.cpu_seconds()
        await group.call(0, "burn_in_child", 0.2, True)
        return await fabric.cpu_seconds() - start
    assert in_inline(body) >= 0.18
