"""The rollout pool against a scripted worker group, in virtual time."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from grpo_bench.contract import (
    Boundary, Cause, DeadlineExceeded, End, Failure, GrpoBenchError, Kind, LimitSettings, PlanError, Position, Purpose,
    SamplingSettings, Task, Trajectory, WorkerLost,
)
from grpo_bench.engine.clock import VirtualClock, run_virtual
from grpo_bench.engine.recorder import Recorder
from grpo_bench.engine.rollouts import RolloutPool, first_error

TASK = Task("task", "train", {"statement": ""}, {}, "")
SAMPLING = {purpose: SamplingSettings().stamp(purpose, stop_token_ids=(0,), max_context=64, seed=1)
            for purpose in Purpose}


@dataclass
class Workers:
    """A worker group whose ``run`` answers what ``script`` says for a rollout id, after a second each. ``hopeless``
    are those that no host is left for, ``doomed`` those that die of every rollout."""

    size: int = 2
    script: dict = field(default_factory=dict)
    calls: list = field(default_factory=list)
    restarted: list = field(default_factory=list)
    restart_s: float = 1
    hopeless: frozenset = frozenset()
    doomed: frozenset = frozenset()
    most_at_once: int = 0
    now: int = 0

    async def call(self, rank, method, *args, deadline_s=None, **kwargs):
        if method == "waiting":
            return {"rank": rank}
        if method == "start":
            self.restarted.append(rank)
            return None
        task, rollout_id, group_id, sampling = args
        self.calls.append((rank, rollout_id, sampling.purpose))
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            await asyncio.sleep(1)
        finally:
            self.now -= 1
        answer = WorkerLost("gone") if rank in self.doomed else self.script.get(rollout_id, End.COMPLETED)
        if isinstance(answer, BaseException):
            raise answer
        if isinstance(answer, Trajectory):
            return answer
        failure = None if answer.is_sample else Failure(Cause.ENVIRONMENT, "broken")
        reward = 1.0 if answer.is_sample else None
        return Trajectory(rollout_id, group_id, task.id, sampling.purpose, (), answer, reward, failure)

    async def restart(self, rank):
        await asyncio.sleep(self.restart_s)
        if rank in self.hopeless:
            raise PlanError(f"no host is left for rollout-{rank}")


def pool_test(body, *, workers: Any = None, beside: bool = False, recover: Any = None, **limits):
    """Run ``body(pool, workers, events)`` under virtual time; ``recover(pool, cause)`` is what brings engines back."""
    workers = workers or Workers()

    async def nothing(pool, cause):
        return None

    async def main(clock: VirtualClock):
        events = []
        pool = RolloutPool(workers, LimitSettings(**limits), SAMPLING, Recorder(clock, events.append), clock,
                           owner=Boundary("some", "generator" if beside else "environment"), beside=beside,
                           recover=lambda cause: (recover or nothing)(pool, cause))
        try:
            return await body(pool, workers, events)
        finally:
            await pool.close()

    return run_virtual(main)


def lost_alarms(events):
    return [event.data for event in events if event.kind == Kind.ALARM and event.data["name"] == "worker_lost"]


def group(pool, name="g", size=4, purpose=Purpose.TRAIN):
    return pool.group(TASK, name=name, group_id=7, position=Position(0, 7), target=3, size=size, purpose=purpose)


def test_a_group_has_its_rollouts_in_order_on_one_worker_and_each_is_an_event():
    async def body(pool, workers, events):
        one, _ = await asyncio.gather(group(pool, "a"), group(pool, "b", purpose=Purpose.VALIDATION))
        assert [trajectory.rollout_id for trajectory in one.trajectories] == ["a.0", "a.1", "a.2", "a.3"]
        assert (one.group_id, one.target, one.task_id) == (7, 3, "task")
        assert {rank for rank, name, _ in workers.calls if name[0] == "a"} == {0}
        assert {rank for rank, name, _ in workers.calls if name[0] == "b"} == {1}
        assert {purpose for _, name, purpose in workers.calls if name[0] == "b"} == {Purpose.VALIDATION}
        assert [event.kind for event in events] == [Kind.ROLLOUT] * 8

    pool_test(body)


def test_no_more_than_the_limit_run_on_a_worker_and_waiting_counts_as_queue():
    async def body(pool, workers, events):
        done = await group(pool, size=6)
        assert workers.most_at_once == 2
        assert sorted(trajectory.durations["queue"] for trajectory in done.trajectories) == [0, 0, 1, 1, 2, 2]

    pool_test(body, concurrency=2)


def test_a_rollout_that_is_no_sample_is_started_again_under_another_id_up_to_the_limit():
    script = {"g.1": End.FAILED, "g.2": End.TIMEOUT, "g.2r1": End.FAILED, "g.2r2": End.FAILED}

    async def body(pool, workers, events):
        done = await group(pool)
        assert [trajectory.rollout_id for trajectory in done.trajectories] == ["g.0", "g.1r1", "g.2r2", "g.3"]
        assert done.trajectories[1].end is End.COMPLETED
        assert done.trajectories[2].reward is None
        assert [event.data["attempt"] for event in events if event.data["rollout_id"].startswith("g.2")] == [0, 1, 2]

    pool_test(body, workers=Workers(script=script), rollout_retries=2)


def test_a_patch_that_steered_its_grading_is_an_alarm():
    script = {name: Trajectory(name, 7, "task", Purpose.TRAIN, (), End.COMPLETED, 0.0, None, counters=counters,
                               verdict="the modes disagree")
              for name, counters in (("g.1", {"tampering": 1}), ("g.2", {"malformed_calls": 2}))}

    async def body(pool, workers, events):
        await group(pool)
        alarms = [event.data for event in events if event.kind == Kind.ALARM]
        assert [alarm["message"] for alarm in alarms] == ["rollout g.1 tampered with its grading: the modes disagree"]

    pool_test(body, workers=Workers(script=script))


LOST = {f"g.{index}": WorkerLost("gone") for index in range(4)}


def test_a_lost_worker_is_replaced_once_for_all_its_rollouts():
    async def body(pool, workers, events):
        done = await group(pool)
        assert workers.restarted == [0]
        assert all(trajectory.end is End.COMPLETED for trajectory in done.trajectories)
        first = [event.data for event in events if event.kind == Kind.ROLLOUT and event.data["attempt"] == 0]
        assert {data["cause"] for data in first} == {"worker"}
        assert lost_alarms(events) == [{
            "name": "worker_lost", "worker": 0, "cause": "gone", "seconds": 1.0,
            "message": "rollout worker 0 ended (gone) and was started again in 1.0 s"}]

    pool_test(body, workers=Workers(size=1, script=LOST))


def test_rollouts_of_a_lost_worker_go_on_elsewhere_while_it_is_started_again():
    async def body(pool, workers, events):
        done = await group(pool)
        assert [event.elapsed_s for event in events if event.kind == Kind.ROLLOUT] == [1] * 4 + [2] * 4
        assert [rank for rank, _, _ in workers.calls] == [0] * 4 + [1] * 4
        assert [trajectory.rollout_id for trajectory in done.trajectories] == [f"g.{index}r1" for index in range(4)]
        await group(pool, "meanwhile")
        await asyncio.sleep(100)
        assert workers.restarted == [0] and len(lost_alarms(events)) == 1
        await group(pool, "later")
        assert [rank for rank, _, _ in workers.calls[8:]] == [1] * 4 + [0] * 4

    pool_test(body, workers=Workers(script=LOST, restart_s=100))


def test_rollouts_that_wait_for_a_place_at_a_lost_worker_go_to_others_too():
    async def body(pool, workers, events):
        await group(pool)
        assert sorted((rank, name) for rank, name, _ in workers.calls) == [
            (0, "g.0"), (0, "g.1"), (1, "g.0r1"), (1, "g.1r1"), (1, "g.2"), (1, "g.3")]
        assert events[-1].elapsed_s == 3

    pool_test(body, workers=Workers(doomed=frozenset({0}), restart_s=100), concurrency=2)


def test_a_worker_that_no_host_is_left_for_is_given_up_once_and_the_others_have_its_work():
    async def body(pool, workers, events):
        await group(pool)
        await group(pool, "later")
        await asyncio.gather(*(group(pool, name) for name in "xyz"))
        (alarm,) = lost_alarms(events)
        assert alarm["message"] == ("rollout worker 0 ended (gone) and is given up (no host is left for rollout-0); "
                                    "2 others have its work")
        assert 0 not in {rank for rank, name, _ in workers.calls if name[0] != "g"}
        assert "seconds" not in alarm

    pool_test(body, workers=Workers(size=3, script=LOST, hopeless=frozenset({0})))


@pytest.mark.parametrize("size", [1, 2])
def test_when_no_worker_is_left_the_group_ends_with_the_reason(size):
    async def body(pool, workers, events):
        with pytest.raises(BaseExceptionGroup) as caught:
            await group(pool)
        assert lost_alarms(events)[-1]["message"].endswith("no other is left")
        return first_error(caught.value)

    everyone = frozenset(range(size))
    error = pool_test(body, workers=Workers(size=size, doomed=everyone, hopeless=everyone), rollout_retries=9)
    assert isinstance(error, WorkerLost) and error.message.startswith("no rollout worker is left: no host is left for")
    assert error.boundary.role == "environment"


def test_a_worker_that_dies_of_every_rollout_is_not_started_for_ever():
    async def body(pool, workers, events):
        for number in range(6):
            done = await group(pool, f"g{number}")
            assert all(trajectory.end.is_sample for trajectory in done.trajectories)
            await asyncio.sleep(10)
        assert workers.restarted == [0, 0]
        assert [alarm["message"].partition(" (")[2][:30] for alarm in lost_alarms(events)][2:] == [
            "gone) and is given up (rollout"]

    pool_test(body, workers=Workers(doomed=frozenset({0})), rollout_retries=9)


def test_a_worker_that_held_an_engine_comes_back_with_it():
    """It is the engine's to be started again; that takes ten seconds here, and nothing is started meanwhile."""
    causes = []

    async def recover(pool, cause):
        if not causes:
            causes.append(cause)
            pool.hold()
            async with pool.replacing(0):
                await asyncio.sleep(10)
            pool.release()

    async def body(pool, workers, events):
        done, later = await asyncio.gather(group(pool), group(pool, "later", size=3))
        assert len(causes) == 1 and causes[0].startswith("gone") and workers.restarted == [0]
        assert [trajectory.rollout_id for trajectory in done.trajectories] == ["g.0", "g.1r1", "g.2", "g.3"]
        assert all(trajectory.end is End.COMPLETED for trajectory in later.trajectories)
        ended = {event.data["rollout_id"]: event.elapsed_s for event in events if event.kind == Kind.ROLLOUT}
        assert ended.pop("g.1r1") == 12
        assert sorted(ended.values()) == [1, 1, 1, 1, 12, 12, 13]
        assert [event for event in events if event.kind == Kind.ALARM] == []

    pool_test(body, workers=Workers(script={"g.1": WorkerLost("gone")}), beside=True, recover=recover, concurrency=2)


def test_a_rollout_that_failed_at_the_generator_waits_for_its_recovery_and_others_do_not():
    causes = []

    async def recover(pool, cause):
        causes.append(cause)
        await asyncio.sleep(5)

    async def body(pool, workers, events):
        await group(pool)
        assert causes == ["lost"]
        ended = {event.data["rollout_id"]: event.elapsed_s for event in events}
        assert ended == {"g.0": 1, "g.1": 1, "g.1r1": 2, "g.2": 1, "g.2r1": 7, "g.3": 1}

    script = {"g.1": End.FAILED, "g.2": Trajectory("g.2", 7, "task", Purpose.TRAIN, (), End.FAILED, None,
                                                   Failure(Cause.GENERATOR, "lost"))}
    pool_test(body, workers=Workers(script=script), recover=recover)


def test_an_engine_that_cannot_come_back_ends_the_group():
    async def recover(pool, cause):
        raise WorkerLost("no more")

    async def body(pool, workers, events):
        with pytest.raises(BaseExceptionGroup) as caught:
            await group(pool)
        assert workers.restarted == []
        return first_error(caught.value)

    error = pool_test(body, workers=Workers(script={"g.1": WorkerLost("gone")}), beside=True, recover=recover)
    assert isinstance(error, WorkerLost) and error.message == "no more"


def test_a_worker_that_does_not_answer_is_a_time_out_of_that_rollout_alone():
    async def body(pool, workers, events):
        done = await group(pool)
        ends = [trajectory.end for trajectory in done.trajectories]
        assert ends == [End.COMPLETED, End.TIMEOUT, End.COMPLETED, End.COMPLETED]
        assert done.trajectories[1].failure.cause is Cause.DEADLINE

    pool_test(body, workers=Workers(script={"g.1": DeadlineExceeded("late")}), rollout_retries=0)


def test_draining_finishes_the_prompts_that_have_begun_and_holds_the_others_back():
    async def body(pool, workers, events):
        running = asyncio.create_task(group(pool, "begun", size=5))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(group(pool, "waits", size=4))
        await asyncio.sleep(0.5)
        await pool.drain()
        assert running.done() and workers.now == 0
        assert [name for _, name, _ in workers.calls] == [f"begun.{index}" for index in range(5)]
        await asyncio.sleep(100)
        assert len(workers.calls) == 5
        pool.open_gates()
        assert len((await waiting).trajectories) == 4

    pool_test(body, workers=Workers(size=1), concurrency=2)


def test_a_slot_that_comes_free_in_a_drain_goes_to_a_prompt_that_has_begun():
    async def body(pool, workers, events):
        tasks = [asyncio.create_task(group(pool, name, size=3)) for name in ("a", "b", "c")]
        await asyncio.sleep(1.5)  # a has ended but for its last rollout, and the first of b has begun
        await pool.drain()
        assert [task.done() for task in tasks] == [True, True, False]
        assert [name for _, name, _ in workers.calls] == ["a.0", "a.1", "a.2", "b.0", "b.1", "b.2"]
        pool.open_gates()
        await asyncio.gather(*tasks)

    pool_test(body, workers=Workers(size=1), concurrency=2)


def test_on_hold_a_drain_waits_for_what_runs_alone():
    async def body(pool, workers, events):
        running = asyncio.create_task(group(pool, size=5))
        await asyncio.sleep(0.5)
        pool.hold()
        await pool.drain()
        assert len(workers.calls) == 2 and workers.now == 0 and not running.done()
        pool.release()
        pool.open_gates()
        assert len((await running).trajectories) == 5

    pool_test(body, workers=Workers(size=1), concurrency=2)


def test_a_drain_under_way_ends_where_the_pool_is_put_on_hold():
    async def body(pool, workers, events):
        running = asyncio.create_task(group(pool, size=5))
        await asyncio.sleep(0.5)
        draining = asyncio.create_task(pool.drain())
        await asyncio.sleep(0.1)
        pool.hold()
        await draining
        assert len(workers.calls) == 2 and workers.now == 0
        pool.release()
        pool.open_gates()
        await running

    pool_test(body, workers=Workers(size=1), concurrency=2)


def test_prompts_behind_a_closed_gate_hold_no_slot_and_keep_their_order():
    async def body(pool, workers, events):
        training = [asyncio.create_task(group(pool, name, size=3)) for name in ("t", "u", "w")]
        await asyncio.sleep(0.5)
        await pool.drain()
        pool.open_gates(Purpose.VALIDATION)
        await group(pool, "v", size=4, purpose=Purpose.VALIDATION)
        pool.open_gates()
        await asyncio.gather(*training)
        assert [name for _, name, _ in workers.calls] == [
            "t.0", "t.1", "t.2", "v.0", "v.1", "v.2", "v.3", "u.0", "u.1", "u.2", "w.0", "w.1", "w.2"]

    pool_test(body, workers=Workers(size=1), concurrency=2)


def test_no_rollout_is_sent_to_a_worker_that_is_being_replaced():
    async def body(pool, workers, events):
        first = asyncio.create_task(group(pool, size=1))
        await asyncio.sleep(1.5)
        later = await group(pool, "later", size=1)
        await first
        assert workers.restarted == [0]
        assert len(later.trajectories) == 1 and later.trajectories[0].durations["queue"] == 0.5
        assert [event.elapsed_s for event in events if event.kind == Kind.ROLLOUT] == [1, 3, 3]

    pool_test(body, workers=Workers(size=1, script={"g.0": WorkerLost("gone")}))


def test_any_other_error_of_a_worker_ends_the_group():
    async def body(pool, workers, events):
        with pytest.raises(BaseExceptionGroup) as caught:
            await group(pool)
        return first_error(caught.value)

    error = pool_test(body, workers=Workers(script={"g.0": GrpoBenchError("bad request")}))
    assert isinstance(error, GrpoBenchError) and error.message == "bad request"
