"""Rollouts in flight: admission, placement on workers, retries, and groups.

Each rollout worker runs at most ``limits.concurrency`` rollouts; the others wait here, in order. The rollouts of one
prompt go to one worker, the one with the least under way, so that they can share the prompt's prefix. A rollout that
ends without a sample is started again up to ``limits.rollout_retries`` times under another id (hence another random
stream); what it ended as last is what its group gets. Each purpose has a gate, and a closed one keeps those prompts
waiting of which no rollout has begun: that is how a drain works, and how validation has the engines for itself. A
prompt that has begun is finished, so that no slot stands idle while the last rollouts are waited for.

The rollouts of a worker that is lost go to another one (see :mod:`.crew`). Where the worker held an engine of the
generator too, as where a rollout failed at the generator, ``recover`` comes first: it returns when all engines serve
again, and the rollout is started again after that, where it was. Meanwhile the pool is on hold, so that no rollout uses
up its retries at an engine that is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from ..contract import (
    Boundary, Cause, DeadlineExceeded, End, Failure, Group, GrpoBenchError, Kind, LimitSettings, Position, Purpose,
    Role, Sampling, Task, Trajectory, WorkerGroup, WorkerLost,
)
from .assembly import Assembly, crossing
from .crew import Crew
from .recorder import Recorder

_GRACE_S = 30.0
_TAMPERING = "tampering"
"""The counter of patches that steered their own grading."""


class _Prompt:
    """One prompt of a pool, known by its identity."""


class RolloutPool:
    """Runs rollouts on a worker group. ``sampling`` holds the stamped value of either purpose; ``owner`` is the part to
    name where a worker fails, ``beside`` whether the generator's engines share the workers' processes, rank by rank;
    ``recover`` is called with what a rollout saw of a failing generator."""

    def __init__(self, workers: WorkerGroup, limits: LimitSettings, sampling: dict[Purpose, Sampling],
                 recorder: Recorder, clock: Any, *, owner: Boundary, beside: bool,
                 recover: Callable[[str], Awaitable[None]]) -> None:
        self._workers = workers
        self._limits = limits
        self._sampling = sampling
        self._recorder = recorder
        self._clock = clock
        self._owner = owner
        self._beside = beside
        self._recover = recover
        self._blames_engines = {Cause.GENERATOR, Cause.WORKER} if beside else {Cause.GENERATOR}
        self._crew = Crew(workers, limits, recorder, clock, owner)
        self._slots = [asyncio.Semaphore(limits.concurrency) for _ in range(workers.size)]
        self._gates = {purpose: asyncio.Event() for purpose in Purpose}
        self.open_gates()
        self._whole = asyncio.Event()
        self._running = 0
        self._begun: set[_Prompt] = set()
        self._idle = asyncio.Event()
        self.release()

    async def group(self, task: Task, *, name: str, group_id: int, position: Position, target: int, size: int,
                    purpose: Purpose) -> Group:
        """``size`` rollouts of one task; ``name`` prefixes their ids."""
        ranks = [self._crew.least_loaded()] * size
        prompt = _Prompt()
        with self._crew.loaded(ranks):
            try:
                async with asyncio.TaskGroup() as tasks:
                    rollouts = [tasks.create_task(self._rollout(prompt, ranks, index, task, f"{name}.{index}", group_id,
                                                                purpose)) for index in range(size)]
            finally:
                self._begun.discard(prompt)
                self._settle()
        return Group(group_id, task.id, position, target, tuple(rollout.result() for rollout in rollouts))

    async def drain(self) -> bool:
        """Begin no prompt and wait until all that have begun are finished; on hold, until no rollout runs. True where
        nothing that has begun is left."""
        for gate in self._gates.values():
            gate.clear()
        await self._idle.wait()
        return not self._begun

    def open_gates(self, *purposes: Purpose) -> None:
        """Let prompts of these purposes (none given: of all) begin again."""
        for purpose in purposes or Purpose:
            self._gates[purpose].set()

    def hold(self) -> None:
        """Start no rollout of any purpose until ``release``, whatever gates are open; those that run go on."""
        self._whole.clear()
        self._settle()

    def release(self) -> None:
        self._whole.set()
        self._settle()

    @asynccontextmanager
    async def replacing(self, rank: int) -> AsyncIterator[None]:
        """While engine ``rank`` is started again: a rollout worker in its process is started again with it."""
        yield
        if self._beside:
            await self._crew.started(rank)

    async def close(self) -> None:
        """Start no worker again any more."""
        await self._crew.close()

    async def waiting(self) -> list[Any]:
        """What every rollout in flight waits for, by worker."""
        answers = await asyncio.gather(*(self._workers.call(rank, "waiting", deadline_s=2.0)
                                         for rank in range(self._workers.size)), return_exceptions=True)
        return [repr(answer) if isinstance(answer, BaseException) else answer for answer in answers]

    async def _rollout(self, prompt: _Prompt, ranks: list[int], index: int, task: Task, name: str, group_id: int,
                       purpose: Purpose) -> Trajectory:
        """One of a prompt's rollouts; ``ranks`` says on which worker each of them is."""
        attempt = 0
        while True:
            rollout_id = name if attempt == 0 else f"{name}r{attempt}"
            asked = self._clock.monotonic()
            await self._enter(prompt, ranks, index, purpose)
            waited = self._clock.monotonic() - asked
            trajectory = await self._admitted(ranks[index], task, rollout_id, group_id, purpose, waited)
            self._report(trajectory, attempt, ranks[index])
            if trajectory.failure is not None and trajectory.failure.cause in self._blames_engines:
                await self._recover(trajectory.failure.message)
            if trajectory.end.is_sample or attempt >= self._limits.rollout_retries:
                return trajectory
            attempt += 1

    async def _admitted(self, rank: int, task: Task, rollout_id: str, group_id: int, purpose: Purpose,
                        waited: float) -> Trajectory:
        try:
            trajectory = await self._call(rank, task, rollout_id, group_id, purpose)
        finally:
            self._leave(rank)
        durations = dict(trajectory.durations)
        durations["queue"] = durations.get("queue", 0.0) + waited
        return replace(trajectory, durations=durations)

    async def _enter(self, prompt: _Prompt, ranks: list[int], index: int, purpose: Purpose) -> None:
        """Take a slot of the worker, or of another where it is lost, while the gate is open or where the prompt has
        begun; one that has to wait at the gate holds no slot."""
        gate = self._gates[purpose]
        while True:
            if prompt not in self._begun:
                await gate.wait()
            await self._whole.wait()
            if not self._crew.serves(ranks[index]):
                await self._crew.moved(ranks, index)
            slots = self._slots[ranks[index]]
            await slots.acquire()
            if (gate.is_set() or prompt in self._begun) and self._whole.is_set() and self._crew.serves(ranks[index]):
                break
            slots.release()
        self._running += 1
        self._begun.add(prompt)
        self._settle()

    def _leave(self, rank: int) -> None:
        self._slots[rank].release()
        self._running -= 1
        self._settle()

    def _settle(self) -> None:
        """Say whether a drain is over. On hold, what has begun cannot be finished, and the refit that ends the hold
        waits for nothing else."""
        if self._running or (self._begun and self._whole.is_set()):
            self._idle.clear()
        else:
            self._idle.set()

    async def _call(self, rank: int, task: Task, rollout_id: str, group_id: int, purpose: Purpose) -> Trajectory:
        limits = self._limits
        deadline = limits.queue_s + limits.sandbox_start_s + limits.rollout_s + limits.score_s + _GRACE_S
        incarnation = self._crew.incarnations[rank]
        where = replace(self._owner, task=task.id, step=self._recorder.step)
        try:
            with crossing(where):
                trajectory = await self._workers.call(rank, "run", task, rollout_id, group_id, self._sampling[purpose],
                                                      deadline_s=deadline)
            self._crew.finished(rank)
            return trajectory
        except WorkerLost as error:
            if not self._beside:
                self._crew.lost(rank, incarnation, error)
            cause, end, message = Cause.WORKER, End.FAILED, str(error)
        except DeadlineExceeded as error:
            cause, end, message = Cause.DEADLINE, End.TIMEOUT, str(error)
        return Trajectory(rollout_id, group_id, task.id, purpose, (), end, None, Failure(cause, message))

    def _report(self, trajectory: Trajectory, attempt: int, rank: int) -> None:
        failure = trajectory.failure
        self._recorder.emit(
            Kind.ROLLOUT, rollout_id=trajectory.rollout_id, group_id=trajectory.group_id, task_id=trajectory.task_id,
            purpose=trajectory.purpose.value, end=trajectory.end.value, cause=failure.cause.value if failure else None,
            message=failure.message if failure else None, reward=trajectory.reward, turns=trajectory.turns,
            sampled_tokens=trajectory.sampled_tokens, versions=list(trajectory.versions),
            durations={key: round(value, 6) for key, value in trajectory.durations.items()},
            counters=dict(trajectory.counters), attempt=attempt, worker=rank)
        if trajectory.counters.get(_TAMPERING):
            self._recorder.alarm(_TAMPERING, f"rollout {trajectory.rollout_id} tampered with its grading: "
                                             f"{trajectory.verdict or 'the verdict does not say how'}")


def pool_of(parts: Assembly, recorder: Recorder, clock: Any, recover: Callable[[str], Awaitable[None]]) -> RolloutPool:
    """The pool on a run's rollout workers."""
    assert parts.workers is not None
    beside = parts.plan.rollouts_beside_engines
    owner = Role.GENERATOR if beside else Role.ENVIRONMENT
    return RolloutPool(parts.workers, parts.plan.profile.limits, parts.sampling, recorder, clock, beside=beside,
                       owner=Boundary(parts.plan.parts[owner].name, owner.value), recover=recover)


def first_error(error: BaseException) -> BaseException:
    """The one error to report out of (nested) exception groups: ours before others, those before cancellations."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [first_error(item) for item in error.exceptions]
    ours = [item for item in leaves if isinstance(item, GrpoBenchError)]
    return (ours or [item for item in leaves if not isinstance(item, asyncio.CancelledError)] or leaves)[0]
