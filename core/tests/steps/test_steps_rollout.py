"""Every rollout ends with an end and, where it is no sample, a cause; nothing is left open. Time is virtual here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

from grpo_bench.contract import (
    Address, Cause, DeadlineExceeded, End, ExecResult, FinishReason, LimitSettings, Purpose, Reply, Sampling,
    Score, Task, TokenSequence, Trajectory, Turn, WorkerContext,
)
from grpo_bench.engine.clock import run_virtual
from grpo_bench.steps.rollout import PluginSpec, RolloutWorker, make, worker_config

TASK = Task("task-1", "train", {"statement": "do it"}, {}, "f")
SAMPLING = Sampling(Purpose.TRAIN, 1.0, 1.0, -1, 0.0, 1.0, 0.0, 0.0, (0,), 8, 64, 1)

Act = Literal["fine", "raise", "hang", "slow"]


class Script(BaseModel):
    """What each part does when its turn comes."""

    start: Act = "fine"
    open: Act = "fine"
    agent: Act | Literal["swallow", "odd"] = "fine"
    chat: Act | Literal["late"] = "fine"
    exec: Act = "fine"
    diff: Act = "fine"
    score: Act | Literal["none", "nan", "masked"] = "fine"
    close: Act = "fine"
    end: End = End.COMPLETED
    truncated: bool = False


async def act(what: str) -> None:
    if what == "raise":
        raise OSError("it broke")
    if what == "late":
        raise DeadlineExceeded("no reply")
    if what == "hang":
        await asyncio.Event().wait()
    if what == "slow":
        await asyncio.sleep(5.0)


LOG: list[str] = []


@dataclass
class Sandbox:
    script: Script

    async def exec(self, argv: Any, *, timeout_s: float, stdin: str = "") -> ExecResult:
        await act(self.script.exec)
        return ExecResult(0, "", "")

    async def diff(self) -> str:
        await act(self.script.diff)
        return "the patch"

    async def close(self) -> None:
        LOG.append("sandbox closed")
        await act(self.script.close)


@dataclass
class Environment:
    script: Script

    async def start(self) -> None:
        LOG.append("started")
        await act(self.script.start)

    async def open(self, task: Task, *, mounts: Any, sockets: Any) -> Sandbox:
        await act(self.script.open)
        return Sandbox(self.script)

    async def score(self, task: Task, patch: str) -> Score:
        assert patch == "the patch"
        await act(self.script.score)
        reward = {"none": None, "nan": float("nan")}.get(self.script.score, 1.0)
        return Score(reward, masked=self.script.score == "masked", detail="why")

    async def close(self) -> None:
        LOG.append("environment closed")


@dataclass
class Agent:
    script: Script

    async def run(self, task: Task, sandbox: Any, policy: Any) -> Any:
        try:
            await policy.chat([{"role": "user", "content": "hello"}], [])
        except Exception:
            if self.script.agent != "swallow":
                raise
        await sandbox.exec(["ls"], timeout_s=1.0)
        await act(self.script.agent)
        return "odd" if self.script.agent == "odd" else self.script.end


class Session:
    """Records one turn per chat; stands for a policy session and for its record."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.truncated = script.truncated
        self.counters = {"turns": 0}
        self.generate_s = 0.0
        self.error: Exception | None = None
        self.sequences: tuple[TokenSequence, ...] = ()

    async def chat(self, messages: Any, tools: Any) -> Reply:
        ids = np.arange(3, dtype=np.int32)
        turn = Turn(ids, ids, np.zeros(3, np.float32), ((3, 4),), FinishReason.STOP)
        self.sequences = (TokenSequence((turn,)),)
        self.counters["turns"] += 1
        try:
            await act(self.script.chat)
        except Exception as error:
            self.error = error
            raise
        return Reply("", (), False, {})

    def close(self) -> Session:
        LOG.append("session closed")
        return self


@dataclass
class Policy:
    script: Script

    def open(self, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
             max_turns: int | None = None) -> Session:
        return Session(self.script)

    def release(self, rollout_id: str) -> None:
        LOG.append(f"{rollout_id} released")

    async def close(self) -> None:
        LOG.append("policy closed")


def make_environment(config: Script, context: WorkerContext) -> Environment:
    return Environment(config)


def make_agent(config: Script, context: WorkerContext) -> Agent:
    return Agent(config)


def make_policy(config: Any, client: Any, clock: Any) -> Policy:
    assert client == ["engine-0"]
    return Policy(Script.model_validate(config["script"]))


def make_client(remotes: list[Any]) -> list[Any]:
    return remotes


async def connect(address: Address) -> str:
    return f"{address.group}-{address.rank}"


def worker_of(script: Script, limits: LimitSettings, clock: Any) -> RolloutWorker:
    def spec(name: str) -> PluginSpec:
        return PluginSpec(f"{__name__}:make_{name}", f"{__name__}:Script", script.model_dump(mode="json"))

    config = worker_config(
        environment=spec("environment"), agent=spec("agent"), client=f"{__name__}:make_client",
        engines=(Address("engine", 0, ""),), policy=f"{__name__}:make_policy",
        policy_config={"script": script.model_dump(mode="json")}, limits=limits)
    return make(WorkerContext("rollout", 0, 1, config, "", connect, clock, None))


def with_worker(work: Callable[[RolloutWorker], Coroutine[Any, Any, Any]], script: Script, **limits: Any) -> Any:
    async def main(clock: Any) -> Any:
        worker = worker_of(script, LimitSettings(**limits), clock)
        await worker.start()
        try:
            return await work(worker)
        finally:
            await worker.close()

    LOG.clear()
    return run_virtual(main)


def play(script: Script, **limits: Any) -> Trajectory:
    return with_worker(lambda worker: worker.run(TASK, "r1", 7, SAMPLING), script, **limits)


def test_a_rollout_that_goes_well() -> None:
    trajectory = play(Script(agent="slow"))
    assert (trajectory.rollout_id, trajectory.group_id, trajectory.task_id) == ("r1", 7, "task-1")
    assert (trajectory.end, trajectory.reward, trajectory.failure) == (End.COMPLETED, 1.0, None)
    assert (trajectory.sampled_tokens, trajectory.versions) == (3, (4,))
    assert set(trajectory.durations) == {"queue", "sandbox_start", "generate", "environment", "score"}
    assert trajectory.durations["environment"] == 5.0
    assert LOG == ["started", "session closed", "r1 released", "sandbox closed", "policy closed",
                       "environment closed"]


@pytest.mark.parametrize(("script", "end", "reward"), [
    (Script(end=End.MAX_TURNS), End.MAX_TURNS, 1.0), (Script(end=End.TRUNCATED), End.COMPLETED, 1.0),
    (Script(truncated=True), End.TRUNCATED, 1.0), (Script(close="raise"), End.COMPLETED, 1.0),
])
def test_ends_that_are_samples_are_graded(script: Script, end: End, reward: float) -> None:
    trajectory = play(script)
    assert (trajectory.end, trajectory.reward) == (end, reward)


def test_the_environment_can_keep_a_rollout_out_of_the_loss() -> None:
    assert play(Script(score="masked")).masked


@pytest.mark.parametrize(("script", "end", "cause"), [
    (Script(open="raise"), End.FAILED, Cause.SANDBOX_START), (Script(open="hang"), End.TIMEOUT, Cause.SANDBOX_START),
    (Script(chat="raise"), End.FAILED, Cause.GENERATOR), (Script(chat="late"), End.TIMEOUT, Cause.GENERATOR),
    (Script(chat="raise", agent="swallow"), End.FAILED, Cause.GENERATOR),
    (Script(chat="hang"), End.TIMEOUT, Cause.DEADLINE),
    (Script(exec="raise"), End.FAILED, Cause.ENVIRONMENT), (Script(exec="hang"), End.TIMEOUT, Cause.DEADLINE),
    (Script(agent="raise"), End.FAILED, Cause.AGENT), (Script(agent="hang"), End.TIMEOUT, Cause.DEADLINE),
    (Script(agent="odd"), End.FAILED, Cause.AGENT), (Script(end=End.FAILED), End.FAILED, Cause.AGENT),
    (Script(diff="raise"), End.FAILED, Cause.ENVIRONMENT), (Script(diff="hang"), End.TIMEOUT, Cause.ENVIRONMENT),
    (Script(score="raise"), End.FAILED, Cause.SCORE), (Script(score="hang"), End.TIMEOUT, Cause.SCORE),
    (Script(score="none"), End.FAILED, Cause.SCORE), (Script(score="nan"), End.FAILED, Cause.SCORE),
])
def test_whatever_fails_is_an_end_with_a_cause(script: Script, end: End, cause: Cause) -> None:
    trajectory = play(script)
    assert (trajectory.end, trajectory.reward) == (end, None)
    assert trajectory.failure is not None
    assert trajectory.failure.cause is cause
    assert trajectory.failure.message
    opened = script.open == "fine"
    assert (LOG.count("sandbox closed"), LOG.count("session closed")) == (opened, 1)


def test_a_full_worker_lets_the_queue_time_out() -> None:
    async def work(worker: RolloutWorker) -> list[Trajectory]:
        return await asyncio.gather(*(worker.run(TASK, f"r{index}", 0, SAMPLING) for index in range(3)))

    ends = with_worker(work, Script(agent="slow"), concurrency=1, queue_s=7.5)
    assert [trajectory.end for trajectory in ends] == [End.COMPLETED, End.COMPLETED, End.TIMEOUT]
    assert ends[2].failure.cause is Cause.QUEUE
    assert [item.durations["queue"] for item in ends] == [0.0, 5.0, 7.5]


def test_what_everybody_waits_for_can_be_asked() -> None:
    async def work(worker: RolloutWorker) -> dict[str, Any]:
        tasks = [asyncio.create_task(worker.run(TASK, f"r{index}", 0, SAMPLING)) for index in range(2)]
        await asyncio.sleep(1.0)
        told = worker.waiting()
        await worker.abort("r0")
        await worker.abort("r1")
        await asyncio.gather(*tasks)
        assert worker.waiting() == {}
        return told

    told = with_worker(work, Script(agent="hang"), concurrency=1)
    assert {name: (entry["task"], entry["hop"]) for name, entry in told.items()} == {
        "r0": ("task-1", "agent"), "r1": ("task-1", "queue")}


def test_an_aborted_rollout_keeps_its_record() -> None:
    async def work(worker: RolloutWorker) -> Trajectory:
        task = asyncio.create_task(worker.run(TASK, "r1", 0, SAMPLING))
        await asyncio.sleep(1.0)
        await worker.abort("r1")
        await worker.abort("unknown")
        return await task

    trajectory = with_worker(work, Script(agent="hang"))
    assert (trajectory.end, trajectory.sampled_tokens, trajectory.reward) == (End.FAILED, 3, None)
    assert trajectory.failure is not None
    assert trajectory.failure.cause is Cause.WORKER
    assert LOG.count("sandbox closed") == 1


def test_cancelling_the_call_is_the_one_exception() -> None:
    async def work(worker: RolloutWorker) -> None:
        task = asyncio.create_task(worker.run(TASK, "r1", 0, SAMPLING))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert worker.waiting() == {}

    with_worker(work, Script(agent="hang"))
    assert LOG.count("sandbox closed") == 1


def test_failures_of_one_rollout_leave_the_others_alone() -> None:
    async def work(worker: RolloutWorker) -> list[Trajectory]:
        tasks = [asyncio.create_task(worker.run(TASK, f"r{index}", 0, SAMPLING)) for index in range(3)]
        await asyncio.sleep(1.0)
        await worker.abort("r1")
        return await asyncio.gather(*tasks)

    assert [item.end for item in with_worker(work, Script(agent="slow"))] == [
        End.COMPLETED, End.FAILED, End.COMPLETED]


def test_what_a_failed_start_made_is_closed() -> None:
    async def main(clock: Any) -> None:
        worker = worker_of(Script(start="raise"), LimitSettings(), clock)
        with pytest.raises(OSError, match="it broke"):
            await worker.start()
        await worker.close()

    LOG.clear()
    run_virtual(main)
    assert LOG == ["started", "policy closed", "environment closed"]


def test_a_worker_that_was_not_started_says_so() -> None:
    worker = worker_of(Script(), LimitSettings(), None)
    with pytest.raises(RuntimeError, match="not been started"):
        asyncio.run(worker.run(TASK, "r1", 0, SAMPLING))
