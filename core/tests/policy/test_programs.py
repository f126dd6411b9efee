"""Rollouts of an agent that is a program: a worker with the real gateway, the program on its socket."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from grpo_bench.contract import (
    AgentEnd, Cause, End, LimitSettings, Purpose, Sampling, Score, Settings, Task, WorkerContext,
)
from grpo_bench.steps.rollout import PluginSpec, RolloutWorker, make, worker_config

TASK = Task("one", "train", {"statement": "repair it"}, {}, "f")
CALL = "<tool_call>\n<function=look>\n</function>\n</tool_call>"
SAMPLING = Sampling(Purpose.TRAIN, 1.0, 1.0, -1, 0.0, 1.0, 0.0, 0.0, (), 64, 4000, 7)


class Nothing(Settings):
    """Settings of parts that have none."""


@dataclass
class Box:
    """A sandbox that is no more than what it was opened with."""

    mounts: Mapping[str, str]
    sockets: Mapping[str, str]
    closed: bool = False

    async def diff(self) -> str:
        return "a patch"

    async def close(self) -> None:
        self.closed = True


@dataclass
class World:
    boxes: list[Box] = field(default_factory=list)

    async def start(self) -> None: ...

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> Box:
        self.boxes.append(Box(mounts, sockets))
        return self.boxes[-1]

    async def score(self, task: Task, patch: str) -> Score:
        return Score(1.0, counters={"tampering": 1})

    async def close(self) -> None: ...


class Program:
    """Asks until it is refused, as a program in a sandbox would: over HTTP on its socket, and nothing but that."""

    max_turns = 3
    said: ClassVar[list[Any]] = []
    ends: ClassVar[list[AgentEnd | Exception]] = []

    def __init__(self, context: WorkerContext) -> None:
        self.context = context
        self.state = "made"

    def mounts(self) -> Mapping[str, str]:
        return {"/opt/agent": "/host/agent"}

    async def start(self) -> None:
        self.state = "started"

    async def run(self, task: Task, sandbox: Any, access: Any) -> AgentEnd:
        assert self.state == "started"
        path = sandbox.sockets[access.socket]
        headers = {"Authorization": f"Bearer {access.token}"}
        messages = [{"role": "user", "content": task.prompt["statement"]}]
        assert access.asked() is None
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=path), headers=headers,
                                     base_url="http://policy") as http:
            while True:
                answer = await http.post("/v1/chat/completions", json={"model": access.model, "messages": messages})
                self.said.append((answer.status_code, answer.json(), access.replies(), access.truncated()))
                if answer.status_code != 200:
                    break
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
        assert access.asked() == {"messages": messages[:1], "tools": []}
        end = self.ends.pop() if self.ends else AgentEnd(End.MAX_TURNS, "max_turns")
        if isinstance(end, Exception):
            raise end
        return end

    async def close(self) -> None:
        self.state = "closed"


WORLD = World()
PROGRAMS: list[Program] = []
BENCH: list[Any] = []


def make_world(config: Nothing, context: WorkerContext) -> World:
    assert context.interpreter is None
    return WORLD


def make_program(config: Nothing, context: WorkerContext) -> Program:
    PROGRAMS.append(Program(context))
    return PROGRAMS[-1]


def make_client(remotes: list[Any]) -> Any:
    return None


def make_policy(config: Any, client: Any, clock: Any) -> Any:
    return BENCH[-1].policy


@pytest.fixture
def worker(bench: Callable[..., Any], tmp_path: Path) -> RolloutWorker:
    WORLD.boxes.clear()
    for kept in (Program.said, Program.ends, PROGRAMS):
        kept.clear()
    BENCH.append(bench(*[CALL] * 6))
    part = f"{__name__}:Nothing"
    config = worker_config(
        environment=PluginSpec(f"{__name__}:make_world", part, {}), client=f"{__name__}:make_client", engines=(),
        agent=PluginSpec(f"{__name__}:make_program", part, {}, "/env/bin/python"), policy=f"{__name__}:make_policy",
        policy_config={}, limits=LimitSettings(), program=True, run_folder="/runs/one")
    clock = BENCH[-1].client.clock
    return make(WorkerContext("rollout", 0, 1, config, str(tmp_path), None, clock, logging.getLogger()))


def play(worker: RolloutWorker) -> Any:
    async def run() -> Any:
        await worker.start()
        try:
            return await asyncio.gather(*(worker.run(TASK, f"r.{index}", 0, SAMPLING) for index in range(2)))
        finally:
            await worker.close()

    return asyncio.run(run())


def test_what_trains_is_what_the_gateway_granted(worker: RolloutWorker) -> None:
    trajectories = play(worker)
    for trajectory in trajectories:
        assert (trajectory.end, trajectory.reward, trajectory.turns) == (End.MAX_TURNS, 1.0, 3)
        assert trajectory.counters == {"agent_max_turns": 1, "tampering": 1}
        [sequence] = trajectory.sequences
        expected = BENCH[-1].client.sample(CALL).ids
        assert all(np.array_equal(turn.sampled_ids, expected) for turn in sequence.turns)
    refused = [(body["error"]["code"], replies) for status, body, replies, _ in Program.said if status != 200]
    assert refused == [("max_turns", 3)] * 2
    assert json.dumps(trajectories[0].counters)


def test_each_rollout_has_a_socket_of_its_own_while_it_lives(worker: RolloutWorker, tmp_path: Path) -> None:
    play(worker)
    first, second = WORLD.boxes
    assert first.mounts == second.mounts == {"/opt/agent": "/host/agent"}
    assert first.sockets.keys() == second.sockets.keys() and first.sockets != second.sockets
    assert first.closed and second.closed
    assert not list(tmp_path.iterdir())
    [program] = PROGRAMS
    assert (program.state, program.context.interpreter, program.context.run_folder) == (
        "closed", "/env/bin/python", "/runs/one")


def test_a_long_path_is_no_obstacle(worker: RolloutWorker, tmp_path: Path) -> None:
    """The address of a Unix socket holds 104 bytes."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    worker._context = replace(worker._context, rendezvous=str(deep))
    assert [trajectory.reward for trajectory in play(worker)] == [1.0, 1.0]
    folders = {Path(path).parent for box in WORLD.boxes for path in box.sockets.values()}
    assert len(folders) == 1 and not folders.pop().exists()


@pytest.mark.parametrize(("raised", "end", "cause"), [
    (TimeoutError("it took 1800 s"), End.TIMEOUT, Cause.AGENT), (RuntimeError("broken"), End.FAILED, Cause.AGENT)])
def test_a_program_that_does_not_end_well_is_no_sample(worker: RolloutWorker, raised: Exception, end: End,
                                                      cause: Cause) -> None:
    Program.ends += [raised, raised]
    for trajectory in play(worker):
        assert trajectory.failure is not None
        assert (trajectory.end, trajectory.reward, trajectory.failure.cause) == (end, None, cause)
        assert str(raised) in trajectory.failure.message


def test_the_environment_may_mask_and_so_may_the_agent(worker: RolloutWorker) -> None:
    Program.ends += [AgentEnd(End.COMPLETED, "stuck", masked=True), AgentEnd(End.COMPLETED, "finished")]
    first, second = play(worker)
    assert {first.masked, second.masked} == {True, False}
    assert {"agent_stuck", "agent_finished"} < {*first.counters, *second.counters}
