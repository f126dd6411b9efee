"""Groups on a real cluster of several hosts: where they sit, what crosses, and what happens when something dies."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import structlog
from grpo_bench_fabric_ray import RayConfig
from grpo_bench_fabric_ray.fabric import RayFabric

from grpo_bench.contract import DeadlineExceeded, GroupSpec, Placement, PlanError, PluginError, WorkerLost

pytestmark = pytest.mark.real("ray")
TARGET = "ray_targets:Worker"
PATIENCE_S = 120.0


@pytest.fixture
def notes():
    return []


@pytest.fixture
def in_ray(cluster, tmp_path, monkeypatch, notes):
    """Run ``body(fabric)`` on a fabric that was opened for these placements."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(body, wait_s=60.0, **placements):
        async def main():
            config = RayConfig(loss_s=8.0, wait_s=wait_s)
            fabric = RayFabric(config, tmp_path, structlog.get_logger(), lambda *note: notes.append(note))
            try:
                await fabric.open(placements)
                return await body(fabric)
            finally:
                await fabric.close()
        return asyncio.run(main())
    return run


def spec(name, placement, **settings):
    return GroupSpec(name, TARGET, {"name": name}, placement, **settings)


def on(*nodes, **settings):
    return Placement(workers=len(nodes), nodes=nodes, **settings)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.02)


async def noted(group, rank, note, times=1):
    async with asyncio.timeout(PATIENCE_S):
        while (await group.call(rank, "notes")).count(note) < times:  # noqa: ASYNC110 (another process changes it)
            await asyncio.sleep(0.02)


def in_store():
    """How many bytes the cluster's object stores hold, as their hosts last said."""
    import ray

    return ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"]


def test_workers_sit_on_their_hosts_with_their_gpus_and_reach_each_other(in_ray, tmp_path, monkeypatch):
    monkeypatch.setattr("grpo_bench_fabric_ray.seat.PLACE_S", 3.0)
    trainer = on("n0", "n0", "n1", gpus=2, threads=3)
    engine = Placement(workers=1, nodes=("n2", "n3"), gpus=8)

    async def body(fabric):
        first = await fabric.start_group(spec("trainer", trainer))
        second = await fabric.start_group(spec("engine", engine))
        facts = await first.call_all("facts")
        assert [first.address(rank).endpoint.partition(":")[0] for rank in range(3)] == ["n0", "n0", "n1"]
        assert {facts[0]["gpus"], facts[1]["gpus"]} == {"0,1", "2,3"}
        assert (facts[2]["gpus"], facts[2]["threads"], facts[2]["cwd"]) == ("0,1", "3", os.getcwd())
        assert facts[0]["rendezvous"] == facts[1]["rendezvous"] != facts[2]["rendezvous"]
        assert (await second.call(0, "facts"))["gpus"] == "0,1,2,3"
        assert all(re.fullmatch(r"[\d.]+", one["host"]) and one["host"] != "127.0.0.1" for one in facts)
        for rank in (0, 2):  # on its host, and from another
            assert (await first.call(rank, "ask", first.address(1), "facts"))["pid"] == facts[1]["pid"]
        with pytest.raises(PluginError, match="no method 'absent'"):
            await first.call(0, "ask", second.address(0), "absent")
        with pytest.raises(PlanError, match=r"no place on n2 in .* s: others hold the 4 GPUs"):
            await fabric.start_group(spec("more", on("n2", gpus=4)))
        stacks = await fabric.stacks()
        assert set(stacks) == {"trainer-0", "trainer-1", "trainer-2", "engine-0"}
        assert all("Tasks:" in text for text in stacks.values())
        assert await fabric.cpu_seconds() > 0.2
        return [one["pid"] for one in facts]
    pids = in_ray(body, trainer=trainer, engine=engine)
    assert not any(map(alive, pids))
    assert "trainer-2 starts" in (tmp_path / "workers" / "trainer-2.log").read_text()


def test_a_hundred_batches_leave_nothing_in_the_object_store(in_ray):
    """More than the store holds, in one piece for all ranks, out again, and from worker to worker."""
    placement, size = on("n0", "n1", "n2"), 2_000_000

    async def body(fabric):
        group = await fabric.start_group(spec("trainer", placement))
        batch = np.ones(size, np.uint8)
        before, held = in_store(), await fabric.ready(batch.tobytes())
        await until(lambda: in_store() >= before + size)
        del held
        await until(lambda: in_store() <= before)
        for _ in range(100):
            assert await group.call_all("total", batch) == [size] * 3
            assert len(await group.call(1, "batch", size)) == size
            assert await group.call(0, "ask", group.address(2), "total", batch) == size
        await until(lambda: in_store() <= before)
    in_ray(body, trainer=placement)


def test_deadlines_and_cancellations_reach_the_worker_on_whatever_host(in_ray):
    placement = on("n0", "n1")

    async def body(fabric):
        group = await fabric.start_group(spec("gen", placement))
        with pytest.raises(DeadlineExceeded, match=r"gen-1\.wait took longer than 0\.5 s"):
            await group.call(1, "wait", deadline_s=0.5)
        await noted(group, 1, "cancelled")
        with pytest.raises(DeadlineExceeded, match=r"gen-1\.wait took longer than 0\.5 s"):
            await group.call(0, "ask_within", 0.5, group.address(1), "wait")
        waiting = asyncio.ensure_future(group.call(0, "ask", group.address(1), "wait"))
        await noted(group, 1, "waiting", 3)
        waiting.cancel()
        await noted(group, 1, "cancelled", 3)
    in_ray(body, gen=placement)


def test_a_cluster_that_cannot_hold_the_run_is_refused_with_all_that_is_missing(in_ray, notes):
    placements = {"trainer": on("n0", "n7", gpus=8), "generator": Placement(workers=1, nodes=("n1", "n2"))}

    async def never(fabric):
        raise AssertionError("it was opened")
    with pytest.raises(PlanError) as caught:
        in_ray(never, **placements)
    assert re.sub(r"at \S+ ", "", caught.value.message) == (
        "the Ray cluster cannot hold this run: 1 of 4 hosts are not there: n7; host n0 has 4 GPUs, and 8 are placed on "
        "it; generator 0 sits on n1, n2, which the cluster says are in several network domains: d0, d1")
    with pytest.raises(PlanError, match="1 of 2 hosts are not there: n7") as caught:
        in_ray(never, wait_s=2.0, trainer=on("n0", "n7"))
    assert "fabric.wait_s" in caught.value.hint
    assert ("cluster_wait", "waiting for the Ray cluster: 1 of 2 hosts") in notes


def test_a_host_that_comes_late_is_waited_for(in_ray, cluster, notes):
    async def body(fabric):
        return (await (await fabric.start_group(spec("late", on("n4")))).call(0, "facts"))["pid"]

    async def later():
        await until(lambda: notes)
        await asyncio.to_thread(cluster.add, "n4")

    async def both():
        adding = asyncio.create_task(later())
        found = await asyncio.to_thread(in_ray, body, late=on("n4"))
        await adding
        return found
    assert not alive(asyncio.run(both()))


def test_a_host_that_dies_is_named_and_a_spare_takes_its_place(in_ray, cluster):
    """Its address stays good, at workers that knew it before as well; what is asked of all does not fail for it."""
    cluster.add("doomed")
    gen = on("n0", "doomed", gpus=2, spares={"doomed": ("n3",)})

    async def body(fabric):
        group = await fabric.start_group(spec("gen", gen))
        rollout = await fabric.start_group(spec("rollout", on("n1")))
        old = group.address(1)
        pid = (await rollout.call(0, "ask", old, "facts"))["pid"]
        waiting = asyncio.ensure_future(group.call_all("wait"))
        await noted(group, 1, "waiting")
        cluster.kill("doomed")
        with pytest.raises(WorkerLost, match="host doomed is gone, and with it worker process gen-1"):
            await waiting
        await until(lambda: not alive(pid))
        with pytest.raises(WorkerLost, match=r"gen-1 is not reached: its process or its host is gone"):
            await rollout.call(0, "ask", old, "facts")
        assert await group.lost() == [1]
        assert (await fabric.stacks())["gen-1"].startswith("host doomed is gone, and with it worker process gen-1")
        assert await fabric.cpu_seconds() > 0
        await group.restart(1)
        assert await group.lost() == []
        assert group.address(1).endpoint.startswith("n3:")
        now = (await group.call(1, "facts"))["pid"]
        assert (await rollout.call(0, "ask", old, "facts"))["pid"] == now != pid
    in_ray(body, gen=gen, rollout=on("n1"))


def test_a_worker_for_which_no_host_is_left_is_lost_for_good(in_ray, cluster):
    cluster.add("only")
    placement = on("n0", "only", gpus=1)

    async def body(fabric):
        group = await fabric.start_group(spec("gen", placement))
        cluster.kill("only")
        with pytest.raises(WorkerLost, match="host only is gone, and with it worker process gen-1"):
            await group.call(1, "wait")
        for _ in range(2):
            with pytest.raises(WorkerLost, match="host only is gone, and no other host may take the place of"):
                await group.restart(1)
            assert await group.lost() == [1]
        assert await group.call(0, "echo", 1) == 1
    in_ray(body, gen=placement)


def test_a_worker_without_gpus_goes_to_another_host_of_its_group(in_ray, cluster):
    cluster.add("brittle")
    placement = on("n0", "brittle")

    async def body(fabric):
        group = await fabric.start_group(spec("rollout", placement))
        cluster.kill("brittle")
        with pytest.raises(WorkerLost, match="host brittle is gone"):
            await group.call(1, "wait")
        await group.restart(1)
        assert group.address(1).endpoint.startswith("n0:")
        assert await group.call_all("echo", 1) == [1, 1]
    in_ray(body, rollout=placement)


def test_a_later_start_takes_a_spare_for_a_host_that_died(in_ray, cluster, notes):
    cluster.add("gone")
    cluster.kill("gone")
    placement = on("gone", spares={"gone": ("n2",)})

    async def body(fabric):
        group = await fabric.start_group(spec("gen", placement))
        assert group.address(0).endpoint.startswith("n2:")
    in_ray(body, gen=placement)
    assert ("host_replaced", "host gone is gone; n2, which was kept free, takes its place") in notes


def test_a_worker_process_or_its_actor_that_is_killed_comes_back_on_its_host(in_ray):
    placement = on("n1", "n2")

    async def body(fabric):
        group = await fabric.start_group(spec("gen", placement))
        facts = (await group.call_all("facts"))[1]
        child = await group.call(1, "spawn")
        os.kill(facts["pid"], signal.SIGKILL)
        with pytest.raises(WorkerLost, match="worker process gen-1 on n2 was ended by SIGKILL"):
            await group.call(1, "wait")
        await until(lambda: not alive(child))
        await group.restart(1)
        facts, child = (await group.call_all("facts"))[1], await group.call(1, "spawn")
        os.kill(facts["parent"], signal.SIGKILL)
        with pytest.raises(WorkerLost, match="worker process gen-1 on n2 was lost together with the Ray actor"):
            await group.call(1, "wait")
        await until(lambda: not alive(facts["pid"]) and not alive(child))
        assert await group.lost() == [1]
        await group.restart(1)
        assert group.address(1).endpoint.startswith("n2:")
        assert await group.call_all("echo", 2) == [2, 2]
    in_ray(body, gen=placement)


ENGINE = """
import asyncio, json, sys
from pathlib import Path
import structlog
from grpo_bench.contract import GroupSpec, Placement
from grpo_bench_fabric_ray import RayConfig
from grpo_bench_fabric_ray.fabric import RayFabric
async def main(folder):
    fabric = RayFabric(RayConfig(object_store_gib=0.08), Path(folder), structlog.get_logger(), print)
    await fabric.open({})
    group = await fabric.start_group(GroupSpec("a", "ray_targets:Worker", None, Placement(workers=2)))
    facts = await group.call_all("facts")
    pids = [one[name] for one in facts for name in ("pid", "parent")] + await group.call_all("spawn")
    own = fabric._cluster.own
    print(json.dumps([facts[0]["rendezvous"], own and own.authentication["RAY_AUTH_TOKEN_PATH"], *pids]), flush=True)
    await group.call(0, "wait")
asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("own", [False, True])
def test_nothing_outlives_a_driver_that_is_killed(cluster, tmp_path, own):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    if own:
        for name in cluster.environment:
            env.pop(name)
    with subprocess.Popen([sys.executable, "-c", ENGINE, str(tmp_path)], stdout=subprocess.PIPE, env=env) as engine:
        assert engine.stdout is not None
        line = engine.stdout.readline()
        assert line
        rendezvous, token, *pids = json.loads(line)
        assert len(pids) == 6 and all(map(alive, pids))
        folders = [Path(rendezvous).parents[1], *([Path(token).parent] if own else [])]
        assert all(folder.is_dir() for folder in folders)
        engine.kill()
    asyncio.run(until(lambda: not any(map(alive, pids)) and not any(folder.exists() for folder in folders)))
    if own:
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if token in path.read_text(errors="replace")]
