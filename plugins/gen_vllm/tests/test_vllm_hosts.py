"""Engines that span hosts: who sits where, who belongs to whom, and what happens where one half fails."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.contract import (
    Address, GroupSpec, LimitSettings, Placement, PluginContext, PluginError, PolicyFacts, Purpose, Sampling,
    WorkerLost,
)
from grpo_bench_gen_vllm import VllmGeneratorConfig, follower, process
from grpo_bench_gen_vllm.arguments import over_hosts
from grpo_bench_gen_vllm.controller import VllmGenerator, make
from grpo_bench_gen_vllm.follower import Follower
from grpo_bench_gen_vllm.hosts import Spread
from grpo_bench_gen_vllm.process import Process

SAMPLING = Sampling(purpose=Purpose.TRAIN, temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0, repetition_penalty=1.0,
                    presence_penalty=0.0, frequency_penalty=0.0, stop_token_ids=(), max_tokens=8, max_context=64,
                    seed=0)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 8))
def test_every_host_of_every_engine_has_one_worker(engines: int, hosts: int, share: int) -> None:
    nodes = tuple(f"{engine}.{host}" for engine in range(engines) for host in range(hosts))
    placement = Placement(engines, 3, nodes, share * hosts, {"0.0": ("idle",)}, {"A": "1"})
    spread = Spread.of(placement, engines)
    first, further = spread.first(), spread.further()
    assert first.nodes == nodes[::hosts] and sorted(first.nodes + further.nodes) == sorted(nodes)
    assert (first.workers, further.workers) == (engines, engines * (hosts - 1))
    assert first.gpus == further.gpus == share
    assert (first.threads, first.spares, first.env) == (3, placement.spares, {"A": "1"})
    for engine in range(engines):
        mine = spread.followers(engine)
        assert [further.nodes[rank] for rank in mine] == list(nodes[engine * hosts + 1:(engine + 1) * hosts])
        assert all(spread.engine_of(rank) == engine for rank in mine)


def test_engines_of_this_host_have_no_followers() -> None:
    spread = Spread.of(Placement(workers=1, threads=2, gpus=4), 3)
    assert spread.hosts == 1 and spread.first() == Placement(workers=3, threads=2, gpus=4)


class Group:
    """A started group that notes what it is asked; ``ended`` are ranks whose process is gone."""

    def __init__(self, spec: GroupSpec, notes: list[str]) -> None:
        self.spec, self.size, self.ended, self._notes = spec, spec.placement.workers, set[int](), notes

    def address(self, rank: int) -> Address:
        return Address(self.spec.name, rank, "")

    async def call(self, rank: int, method: str, /, *args: Any, deadline_s: float | None = None) -> Any:
        if rank in self.ended:
            raise WorkerLost(f"{self.spec.name}-{rank} ended")
        return {"rank": rank}

    async def call_all(self, method: str, /, *args: Any) -> list[Any]:
        return [await self.call(rank, method) for rank in range(self.size)]

    async def restart(self, rank: int) -> None:
        self._notes.append(f"restart {self.spec.name}-{rank}")
        self.ended.discard(rank)

    async def close(self) -> None:
        self._notes.append(f"close {self.spec.name}")


class Fabric:
    def __init__(self, fails: str = "") -> None:
        self.groups: dict[str, Group] = {}
        self.notes: list[str] = []
        self._fails = fails

    async def start_group(self, spec: GroupSpec) -> Group:
        if spec.name == self._fails:
            raise PluginError(f"{spec.name} does not start")
        return self.groups.setdefault(spec.name, Group(spec, self.notes))


def generator(fabric: Fabric, placement: Placement, **settings: Any) -> VllmGenerator:
    given: Any = {"sampling": {Purpose.TRAIN: SAMPLING}, "limits": LimitSettings(start_s=77.0)}
    return make(PluginContext(
        config=VllmGeneratorConfig(**settings), fabric=fabric, placement=placement,  # type: ignore[arg-type]
        run_folder=Path("run"), policy=PolicyFacts(Path("p"), 64, 100), seed=1, deterministic=False,
        clock=SimpleNamespace(), logger=None, interpreter="/python", shared=given))  # type: ignore[arg-type]


PLACED = Placement(3, 1, ("a", "b", "c", "d", "e", "f"), 8)


def test_an_engine_and_its_followers_live_and_die_together() -> None:
    async def play() -> None:
        fabric = Fabric()
        made = generator(fabric, PLACED, workers=3, tensor_parallel=8)
        await made.start()
        first, further = fabric.groups["generator"], fabric.groups["generator-hosts"]
        assert (first.spec.placement.nodes, further.spec.placement.nodes) == (("a", "c", "e"), ("b", "d", "f"))
        assert first.spec.placement.gpus == further.spec.placement.gpus == 4
        assert {(group.spec.interpreter, group.spec.start_deadline_s) for group in (first, further)} == {
            ("/python", 77.0)}
        assert first.spec.config["followers"] == tuple((further.address(rank),) for rank in range(3))
        assert [address.group for address in made.addresses()] == ["generator"] * 3
        assert await made.health() == {"engines": [{"rank": rank} for rank in range(3)],
                                       "further": [{"rank": rank} for rank in range(3)]}
        first.ended, further.ended = {0}, {2}
        assert await made.lost() == [0, 2]
        await made.restart(2)
        assert await made.lost() == [0]
        await made.restart(0)
        await made.close()
        assert fabric.notes == ["restart generator-hosts-2", "restart generator-2", "restart generator-hosts-0",
                                "restart generator-0", "close generator", "close generator-hosts"]

    asyncio.run(play())


def test_engines_on_one_host_start_no_followers() -> None:
    async def play() -> None:
        fabric = Fabric()
        made = generator(fabric, Placement(2, 1, ("a", "b"), 4), workers=2, tensor_parallel=4)
        await made.start()
        assert fabric.groups.keys() == {"generator"}
        assert fabric.groups["generator"].spec.config["followers"] == ((), ())
        assert (await made.health()).keys() == {"engines"} and await made.lost() == []

    asyncio.run(play())


def test_followers_whose_engines_do_not_start_are_closed() -> None:
    fabric = Fabric(fails="generator")
    with pytest.raises(PluginError, match="generator does not start"):
        asyncio.run(generator(fabric, PLACED, workers=3, tensor_parallel=8).start())
    assert fabric.notes == ["close generator-hosts"]


class Remote:
    """A follower as its engine's first host sees it."""

    local = False

    def __init__(self, joined: Exception | None = None, ended: Exception | None = None) -> None:
        self.asked: list[Any] = []
        self._outcomes = {"join": joined, "wait": ended}

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None) -> None:
        self.asked.append((method, *args))
        if (outcome := self._outcomes[method]) is not None:
            raise outcome
        if method == "wait":
            await asyncio.Event().wait()


def started(monkeypatch: pytest.MonkeyPatch, followers: Sequence[Remote], waits: threading.Event) -> Any:
    """Start an engine whose own half is there when ``waits`` is set; returns its Process and that half's arguments."""
    seen: dict[str, Any] = {}
    engine = SimpleNamespace(errored=False, shutdown=lambda timeout: None, engine_core=SimpleNamespace(
        resources=SimpleNamespace(engine_manager=SimpleNamespace(processes=[]))))

    def start(arguments: dict[str, Any]) -> Any:
        seen.update(arguments)
        waits.wait(30)
        return engine

    monkeypatch.setattr(process, "_engine", start)
    return seen, Process.start({"seed": 1}, "127.0.0.1", followers)  # type: ignore[arg-type]


def test_all_hosts_are_told_where_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        waits = threading.Event()
        waits.set()
        remotes = [Remote(), Remote()]
        seen, starting = started(monkeypatch, remotes, waits)
        running = await starting
        address = f"127.0.0.1:{seen['master_port']}"
        assert (seen["seed"], seen["nnodes"], seen["node_rank"], seen["master_addr"]) == (1, 3, 0, "127.0.0.1")
        assert [remote.asked[0] for remote in remotes] == [("join", 3, 1, address), ("join", 3, 2, address)]
        await running.check()
        await running.close()

    asyncio.run(play())


def test_a_host_that_cannot_join_is_the_error_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        waits = threading.Event()
        _, starting = started(monkeypatch, [Remote(), Remote(joined=PluginError("no vLLM there"))], waits)
        try:
            with pytest.raises(PluginError, match="no vLLM there"):
                await starting
        finally:
            waits.set()

    asyncio.run(play())


def test_an_engine_ends_with_any_of_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        waits = threading.Event()
        waits.set()
        _, starting = started(monkeypatch, [Remote(), Remote(ended=WorkerLost("its host is gone"))], waits)
        running = await starting
        with pytest.raises(WorkerLost, match="host 2 of the engine: its host is gone"):
            await running.call(asyncio.Event().wait())
        with pytest.raises(WorkerLost, match="host 2 of the engine"):
            await running.check()
        await running.close()

    asyncio.run(play())


def test_a_follower_tells_how_its_processes_end_and_ends_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        children: list[Any] = [multiprocessing.get_context("spawn").Process(target=signal.pause) for _ in range(2)]
        for child in children:
            child.start()
        closed: list[bool] = []

        def joined(arguments: dict[str, Any]) -> Any:
            assert arguments == {"seed": 1, **over_hosts(2, 1, "h:7")}
            return SimpleNamespace(workers=[SimpleNamespace(proc=child) for child in children],
                                   shutdown=lambda: closed.append(not any(c.join() or c.is_alive() for c in children)))

        monkeypatch.setattr(follower, "_executor", joined)
        made = Follower({"seed": 1})
        await made.join(2, 1, "h:7")
        assert await made.health() == {"processes": [child.pid for child in children]}
        waiting = asyncio.ensure_future(made.wait())
        children[0].kill()
        for end in (waiting, made.health(), made.wait()):
            with pytest.raises(WorkerLost, match=f"engine process {children[0].pid} was ended by SIGKILL"):
                await end
        await made.close()
        assert closed == [True]

    asyncio.run(play())


def test_a_follower_that_has_not_joined_says_so() -> None:
    async def play() -> None:
        made = Follower({})
        for work in (made.wait(), made.health()):
            with pytest.raises(PluginError, match="has not joined its engine"):
                await work
        await made.close()

    asyncio.run(play())
