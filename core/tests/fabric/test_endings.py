"""How worker processes end, by themselves or with the engine, and what is known about them meanwhile."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_bench.contract import DeadlineExceeded, WorkerLost


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pids: list[int], *folders: Path) -> bool:
    return not any(map(alive, pids)) and not any(folder.exists() for folder in folders)


@pytest.mark.parametrize(("method", "argument", "ending"), [
    ("die", 7, "ended with exit code 7; its last output: the last words"),
    ("leave", 3, "ended with exit code 3")])
def test_a_lost_worker_names_itself_and_how_it_ended(in_local, spec, until, tmp_path, method, argument, ending):
    async def body(fabric):
        group = await fabric.start_group(spec("gen", workers=2))
        waiting = asyncio.create_task(group.call(1, "wait"))
        await until(lambda: group.call(1, "notes"))
        with pytest.raises(WorkerLost, match=rf"gen-1 {ending}") as caught:
            await group.call(1, method, argument)
        assert str(tmp_path / "workers" / "gen-1.log") in caught.value.hint
        with pytest.raises(WorkerLost, match=ending):
            await waiting
        with pytest.raises(WorkerLost, match=ending):
            await group.call(1, "notes")
        assert await group.call(0, "notes") == []
        await group.restart(1)
        assert await group.call(1, "notes") == []
    in_local(body)


def test_a_call_to_all_names_the_worker_that_ended_not_one_that_missed_it(in_local, spec):
    async def body(fabric):
        group = await fabric.start_group(spec("gen", workers=3))
        with pytest.raises(WorkerLost, match="gen-1 ended with exit code 7") as caught:
            await group.call_all("miss", 7)
        assert "reset by peer" in str(caught.value.__cause__)
    in_local(body)


def test_a_killed_worker_takes_its_children_with_it_and_tells_its_callers(in_local, spec, until):
    async def body(fabric):
        group = await fabric.start_group(spec("gen"))
        caller = await fabric.start_group(spec("caller"))
        await caller.call(0, "keep_remote", group.address(0))
        pid = (await group.call(0, "identity"))[-1]
        child = await group.call(0, "spawn")
        waiting = asyncio.create_task(caller.call(0, "use_remote", "wait"))
        await until(lambda: group.call(0, "notes"))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerLost, match="ended its connection"):
            await waiting
        with pytest.raises(WorkerLost, match="gen-0 was ended by SIGKILL"):
            await group.call(0, "notes")
        await until(lambda: gone([pid, child]))
    in_local(body)


def test_a_worker_that_is_lost_can_be_connected_to_before_it_is_back(in_local, spec, until):
    async def body(fabric):
        group = await fabric.start_group(spec("gen"))
        caller = await fabric.start_group(spec("caller"))
        os.kill((await group.call(0, "identity"))[-1], signal.SIGKILL)
        await until(group.lost)
        await caller.call(0, "keep_remote", group.address(0))
        with pytest.raises(WorkerLost, match="no worker process answers"):
            await caller.call(0, "use_remote", "notes")
        await group.restart(0)
        assert await caller.call(0, "use_remote", "notes") == []
    in_local(body)


def test_closing_ends_children_in_any_session_and_blocked_workers(in_local, spec):
    async def body(fabric):
        group = await fabric.start_group(spec(workers=2))
        pids = [found[-1] for found in await group.call_all("identity")]
        pids += [await group.call(0, "spawn"), await group.call(0, "spawn", True)]
        blocked = asyncio.create_task(group.call(1, "block", 600))
        await fabric.close()
        with pytest.raises(WorkerLost):
            await blocked
        assert not any(map(alive, pids))
    in_local(body, grace_s=0.2)


def test_a_start_that_hangs_is_ended_at_its_deadline_with_stacks(in_local, spec):
    async def body(fabric):
        base = await fabric.start_group(spec("base"))
        with pytest.raises(DeadlineExceeded, match=r"the start of worker group a took longer than 0\.5 s") as caught:
            await fabric.start_group(spec(target="fabric_targets:never", colocate="base", start_deadline_s=0.5))
        assert "in never\n" in caught.value.__notes__[0]
        await base.close()
        assert await fabric.stacks() == {}
    in_local(body, grace_s=0.2)


def test_stacks_show_blocked_threads_and_waiting_tasks(in_local, spec, until):
    async def body(fabric):
        group = await fabric.start_group(spec(workers=2))
        calls = [asyncio.create_task(group.call(0, "block", 600)), asyncio.create_task(group.call(1, "wait"))]
        await until(lambda: group.call(1, "notes"))
        stacks = await fabric.stacks()
        assert list(stacks) == ["a-0", "a-1"]
        assert "fabric_targets.py\", line" in stacks["a-0"]
        assert "in block\n" in stacks["a-0"]
        assert "the event loop does not answer" in stacks["a-0"]
        assert "in wait\n" in stacks["a-1"]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    in_local(body, grace_s=0.2)


def test_cpu_time_of_workers_and_their_children_counts_once(in_local, spec):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    async def body(fabric):
        group = await fabric.start_group(spec(workers=2))
        start = await fabric.cpu_seconds()
        await group.call(0, "burn", 0.3)
        await group.call(0, "burn_in_child", 0.3, True)
        await group.call(1, "burn_in_child", 0.3, False)
        running = await fabric.cpu_seconds()
        await group.restart(0)
        await fabric.close()
        return start, running, await fabric.cpu_seconds()
    start, running, ended = in_local(body)
    assert running >= start + 0.85
    assert ended >= running
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    reaped = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert reaped + 0.25 <= ended <= reaped + 0.6


ENGINE = """
import asyncio, json, sys
from pathlib import Path
from grpo_bench.contract import GroupSpec, Placement
from grpo_bench.fabric import LocalFabric
class Clock:
    def now_utc(self): return "now"
async def main(folder):
    fabric = LocalFabric(Path(folder), Clock(), None)
    group = await fabric.start_group(GroupSpec("a", "fabric_targets:Worker", None, Placement(workers=2)))
    pids = [found[-1] for found in await group.call_all("identity")]
    pids += await group.call_all("spawn")
    pids += await group.call_all("spawn", True)
    blocked = asyncio.create_task(group.call(1, "block", 600))
    await asyncio.sleep(0)
    print(json.dumps([group.address(0).endpoint, *pids]), flush=True)
    await blocked
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_outlives_the_engine(tmp_path, until, number):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", ENGINE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as engine:
        assert engine.stdout is not None
        endpoint, *pids = json.loads(engine.stdout.readline())
        assert len(pids) == 6
        assert all(map(alive, pids))
        engine.send_signal(number)
    asyncio.run(until(lambda: gone(pids, Path(endpoint).parent)))
