"""What a fabric owes: workers that can be called, errors that come back, and nothing left when it is closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from ..contract import (
    BatchError, DeadlineExceeded, End, FabricHandle, GroupSpec, Placement, PluginError, Role, Task, WorkerGroup,
    WorkerLost,
)
from .suite import Rig, Suite, demand, raised
from .workers import BROKEN, TARGET
from .world import World

SOON_S = 0.3


@dataclass
class FabricRig(Rig):
    """``fabric``, and a folder in which workers note that they were closed."""

    fabric: FabricHandle
    closed: Path

    async def group(self, name: str = "group", workers: int = 2, *, target: str = TARGET, colocate: str | None = None,
                    env: Mapping[str, str] | None = None) -> WorkerGroup:
        return await self.fabric.start_group(GroupSpec(
            name=name, target=target, config={"closed": str(self.closed), "number": 7, "pair": (1, "two")},
            placement=Placement(workers=workers, env=env or {}), colocate=colocate))

    async def needs_processes(self, group: WorkerGroup) -> None:
        mine = (await group.call(0, "who"))["process"] == os.getpid()
        self.needs(not mine, "its workers are objects of the engine's own process")


class FabricSuite(Suite):
    """Demands on fabrics."""

    role = Role.FABRIC

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[FabricRig]:
        fabric: FabricHandle = world.make(rig.descriptor, rig.config, None)
        try:
            await fabric.open({})
            yield FabricRig(**vars(rig), fabric=fabric, closed=world.new_folder())
        finally:
            await fabric.close()

    @demand
    async def test_workers_know_who_they_are(self, rig: FabricRig) -> None:
        """Group, rank, size, their settings, and one empty folder that all of them see."""
        group = await rig.group(workers=3)
        told = await group.call_all("who")
        assert group.size == 3 and [one["rank"] for one in told] == [0, 1, 2]
        assert {(one["group"], one["size"]) for one in told} == {("group", 3)}
        assert all((one["config"]["number"], one["config"]["pair"]) == (7, (1, "two")) for one in told)
        folder, = {one["rendezvous"] for one in told}
        assert await asyncio.to_thread(os.listdir, folder) == []

    @demand
    async def test_values_arrive_as_they_were(self, rig: FabricRig) -> None:
        """Plain data, arrays with dtype and shape, and the contract's types, large ones too, there and back."""
        group = await rig.group(workers=1)
        task = Task("t", "train", {"statement": "ä€\0"}, {"n": 2**60}, "f")
        for value in (None, True, -1, 1.5, "ä€", b"\0", [], {"a": [1, (2, 3)]}, task, End.COMPLETED, "x" * 3_000_000):
            for method in ("echo", "echo_later"):
                answer = await group.call(0, method, value)
                assert answer == value and type(answer) is type(value)
        for array in (np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros((0, 2), np.float32), np.float64(np.nan)):
            answer = await group.call(0, "echo", array)
            np.testing.assert_array_equal(answer, array)
            assert np.asarray(answer).dtype == np.asarray(array).dtype

    @demand
    async def test_errors_come_back(self, rig: FabricRig) -> None:
        """What a worker raises is a PluginError that says what it was; errors of the contract stay what they are. The
        worker goes on."""
        group = await rig.group()
        with pytest.raises(PluginError, match="told to fail"):
            await group.call(1, "fail")
        with pytest.raises(BatchError, match="refused") as caught:
            await group.call(1, "refuse")
        assert caught.value.hint == "make another"
        with pytest.raises(PluginError):
            await group.call_all("fail")
        assert await group.call_all("echo", 3) == [3, 3]

    @demand
    async def test_what_is_not_offered_cannot_be_called(self, rig: FabricRig) -> None:
        """Neither a method that does not exist, nor a private one."""
        group = await rig.group(workers=1)
        for method in ("no_such_method", "_context", "__init__"):
            await raised(group.call(0, method))

    @demand
    async def test_calls_run_side_by_side(self, rig: FabricRig) -> None:
        """A call that waits does not keep others from the same worker: rollouts of one worker are many."""
        group = await rig.group(workers=1)
        listening = [asyncio.ensure_future(group.call(0, "listen")) for _ in range(20)]
        assert await group.call(0, "echo", 1) == 1
        await group.call(0, "tell")
        assert await asyncio.gather(*listening) == ["told"] * 20

    @demand
    async def test_deadlines_are_kept(self, rig: FabricRig) -> None:
        """A call that passes its deadline is cancelled: DeadlineExceeded, and the worker is as before."""
        group = await rig.group(workers=1)
        with pytest.raises(DeadlineExceeded):
            await group.call(0, "listen", deadline_s=SOON_S)
        assert await group.call(0, "echo", 1, deadline_s=30.0) == 1

    @demand
    async def test_workers_reach_each_other(self, rig: FabricRig) -> None:
        """By address, from the engine and from any other worker, also of another group."""
        first, second = await rig.group("first"), await rig.group("second")
        remote = await rig.fabric.connect(second.address(1))
        assert (await remote.call("who"))["rank"] == 1
        told = await first.call(0, "ask", second.address(1), "who")
        assert (told["group"], told["rank"]) == ("second", 1)
        with pytest.raises(PluginError, match="told to fail"):
            await first.call(0, "ask", second.address(0), "fail")

    @demand
    async def test_colocated_workers_share_a_process(self, rig: FabricRig) -> None:
        """Rank by rank, so that they call each other without serialising."""
        first = await rig.group("first")
        second = await rig.group("second", colocate="first")
        processes = [[one["process"] for one in await group.call_all("who")] for group in (first, second)]
        assert processes[0] == processes[1]
        assert await second.call(1, "reaches_directly", first.address(1)) is True

    @demand
    async def test_environment_variables_reach_workers(self, rig: FabricRig) -> None:
        """Those of the placement, from the start: libraries read them when they are imported."""
        group = await rig.group(workers=1, env={"CONFORMANCE_VARIABLE": "7"})
        await rig.needs_processes(group)
        assert await group.call(0, "variable", "CONFORMANCE_VARIABLE") == "7"

    @demand
    async def test_a_restarted_worker_is_new(self, rig: FabricRig) -> None:
        """It has the old address and nothing else of the old one; its neighbours stay."""
        group = await rig.group()
        await group.call_all("echo", 1)
        remote = await rig.fabric.connect(group.address(0))
        await group.restart(0)
        assert await group.call_all("calls") == [0, 1]
        assert await remote.call("calls") == 0

    @demand
    async def test_a_worker_that_dies_is_missed(self, rig: FabricRig) -> None:
        """WorkerLost at whoever waits for it or calls it, and its group knows; a restart brings it back."""
        group = await rig.group()
        await rig.needs_processes(group)
        assert list(await group.lost()) == []
        waiting = asyncio.ensure_future(group.call(0, "listen"))
        await asyncio.sleep(0.05)
        for call in (group.call(0, "die"), waiting, group.call(0, "echo", 1)):
            with pytest.raises(WorkerLost):
                await call
        assert await group.call(1, "echo", 1) == 1
        assert list(await group.lost()) == [0]
        await group.restart(0)
        assert await group.call_all("echo", 2) == [2, 2]
        assert list(await group.lost()) == []

    @demand
    async def test_a_start_that_fails_leaves_nothing(self, rig: FabricRig) -> None:
        """The error says why, and the name is free again."""
        error = await raised(rig.group(target=BROKEN))
        assert "cannot be made" in str(error)
        assert await (await rig.group(workers=1)).call_all("echo", 1) == [1]

    @demand
    async def test_names_are_used_once(self, rig: FabricRig) -> None:
        """Two groups of one name could not be told apart."""
        await rig.group(workers=1)
        await raised(rig.group(workers=1))

    @demand
    async def test_closing_leaves_nothing(self, rig: FabricRig) -> None:
        """Every worker's ``close`` has run, every process is gone, and closing again is fine."""
        group = await rig.group()
        processes = {one["process"] for one in await group.call_all("who")} - {os.getpid()}
        await group.close()
        await group.close()
        await rig.group("another")
        await rig.fabric.close()
        await rig.fabric.close()
        noted = await asyncio.to_thread(os.listdir, rig.closed)
        assert sorted(noted) == ["another-0", "another-1", "group-0", "group-1"]
        for process in processes:
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)

    @demand
    async def test_it_accounts_for_its_workers(self, rig: FabricRig) -> None:
        """CPU time of worker processes, ended ones included, and stacks by name, for hang reports."""
        await rig.group(workers=1)
        assert await rig.fabric.cpu_seconds() >= 0
        assert all(isinstance(text, str) for item in (await rig.fabric.stacks()).items() for text in item)
