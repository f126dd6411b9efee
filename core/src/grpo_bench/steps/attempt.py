"""The life of one rollout: queue, sandbox, agent, diff, grading; an end and, if it is no sample, a cause.

Every hop has a deadline and a name. Whatever raises inside a hop ends the rollout as FAILED with that hop as the cause,
a deadline that passes as TIMEOUT; neither carries a reward. Whether the context cut a rollout off is for the policy
session's record to say: a reply cut by its own limit is the policy's last word, and COMPLETED. The sandbox and the
policy session are closed in any case. Deadlines are asyncio's, so they follow the event loop's clock, virtual or not.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from grpo_bench.contract import (
    AgentEnd, Cause, Clock, DeadlineExceeded, End, Environment, Failure, LimitSettings, PolicyClient, Sampling, Sandbox,
    Task, TokenSequence, Trajectory,
)

from .meeting import Door, Gateway, Meeting

NORMAL_ENDS = frozenset({End.COMPLETED, End.MAX_TURNS, End.TRUNCATED})
CHARGED = {"queue": "queue", "sandbox_start": "sandbox_start", "diff": "environment", "score": "score"}
"""Which of a trajectory's durations a hop adds to; the agent's is split by what the policy session measured."""


class SessionRecord(Protocol):
    """What a policy session leaves behind."""

    @property
    def sequences(self) -> tuple[TokenSequence, ...]: ...

    @property
    def truncated(self) -> bool: ...

    @property
    def counters(self) -> Mapping[str, int]: ...

    @property
    def generate_s(self) -> float: ...

    @property
    def error(self) -> Exception | None:
        """Why the latest reply failed, whether the agent let it show or not; None where it did not."""
        ...


class PolicySession(PolicyClient, Protocol):
    """One rollout's conversation with the policy."""

    def close(self) -> SessionRecord:
        """End it; what it recorded. A call still running is cancelled and leaves nothing."""
        ...


class Policy(Protocol):
    """Opens sessions; made once per worker."""

    def open(self, rollout_id: str, affinity: str, sampling: Sampling, request_s: float,
             max_turns: int | None = None) -> PolicySession: ...

    def gateway(self) -> Gateway: ...

    def release(self, rollout_id: str) -> None:
        """The rollout asks no more; does not wait."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the rollouts of a worker share."""

    environment: Environment
    meeting: Meeting
    policy: Policy
    clock: Clock
    limits: LimitSettings


class _Stop(Exception):
    """A rollout ends here, and is no sample."""

    def __init__(self, end: End, failure: Failure) -> None:
        super().__init__(failure.message)
        self.end = end
        self.failure = failure


def _stop(cause: Cause, error: Exception) -> _Stop:
    """The end that an exception of a hop means: a time-out, or a failure."""
    end = End.TIMEOUT if isinstance(error, TimeoutError | DeadlineExceeded) else End.FAILED
    text = "".join(traceback.format_exception(error))
    return _Stop(end, Failure(cause, f"{type(error).__name__}: {error}", text))


class _Watched:
    """Passes every call on to a sandbox, and remembers what its coroutines raised."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.errors: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return await found(*args, **kwargs)
            except Exception as error:
                self.errors.append(error)
                raise

        return call


class _Hop:
    """The context of one hop of an attempt; a class, since many rollouts go through many hops."""

    __slots__ = ("_attempt", "_cause", "_deadline", "_limit_s", "_name")

    def __init__(self, attempt: Attempt, name: str, cause: Cause, limit_s: float | None) -> None:
        self._attempt, self._name, self._cause, self._limit_s = attempt, name, cause, limit_s
        self._deadline = asyncio.timeout(limit_s)

    async def __aenter__(self) -> None:
        await self._deadline.__aenter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            await self._deadline.__aexit__(kind, error, trace)
        except TimeoutError as passed:
            error = passed
        finally:
            self._attempt.left(self._name)
        if not isinstance(error, Exception) or isinstance(error, _Stop):
            return
        if self._deadline.expired():
            message = f"{self._name} took longer than {self._limit_s:g} s"
            raise _Stop(End.TIMEOUT, Failure(self._cause, message)) from error
        raise _stop(self._cause, error) from error


class Attempt:
    """One rollout. ``run`` is called once."""

    def __init__(self, parts: Parts, places: asyncio.Semaphore, task: Task, rollout_id: str, group_id: int,
                 sampling: Sampling) -> None:
        self._parts = parts
        self._places = places
        self._task = task
        self._rollout_id = rollout_id
        self._group_id = group_id
        self._sampling = sampling
        self._record: SessionRecord | None = None
        self._durations: dict[str, float] = {}
        self._counters: Counter[str] = Counter()
        self._masked = False
        self._verdict = ""
        self._hop = "queue"
        self._since = parts.clock.monotonic()

    def waiting(self) -> dict[str, Any]:
        """Which hop it is at, for how long."""
        return {"task": self._task.id, "hop": self._hop, "seconds": self._parts.clock.monotonic() - self._since}

    def aborted(self) -> Trajectory:
        """The trajectory of a rollout that was cancelled on purpose."""
        return self._trajectory(End.FAILED, None, Failure(Cause.WORKER, f"aborted while at {self._hop}"))

    async def run(self) -> Trajectory:
        try:
            async with self._hop_at("queue", Cause.QUEUE, self._parts.limits.queue_s):
                await self._places.acquire()
        except _Stop as stop:
            return self._trajectory(stop.end, None, stop.failure)
        try:
            return await self._admitted()
        except Exception as error:
            stop = error if isinstance(error, _Stop) else _stop(Cause.WORKER, error)
            return self._trajectory(stop.end, None, stop.failure)
        finally:
            self._places.release()

    async def _admitted(self) -> Trajectory:
        limits = self._parts.limits
        try:
            async with asyncio.timeout(limits.rollout_s):
                end, patch = await self._play()
        except TimeoutError:
            message = f"the rollout took longer than {limits.rollout_s:g} s, while at {self._hop}"
            cause = Cause.ENVIRONMENT if self._hop == "diff" else Cause.DEADLINE
            raise _Stop(End.TIMEOUT, Failure(cause, message)) from None
        async with self._hop_at("score", Cause.SCORE, limits.score_s):
            score = await self._parts.environment.score(self._task, patch)
        if score.reward is None or not math.isfinite(score.reward):
            raise _Stop(End.FAILED, Failure(Cause.SCORE, f"no reward ({score.reward}): {score.detail}"))
        self._counters.update(score.counters)
        self._verdict = score.detail
        self._masked |= score.masked
        return self._trajectory(end, float(score.reward))

    async def _play(self) -> tuple[End, str]:
        """Sandbox, agent, diff: how the agent ended, and its patch."""
        parts, limits = self._parts, self._parts.limits
        affinity = f"{self._sampling.purpose.value}-{self._group_id}"
        session = parts.policy.open(self._rollout_id, affinity, self._sampling, limits.request_s,
                                    parts.meeting.max_turns)
        try:
            async with AsyncExitStack() as stack:
                async with self._hop_at("sandbox_start", Cause.SANDBOX_START, limits.sandbox_start_s):
                    door = await stack.enter_async_context(parts.meeting.door(session))
                    sandbox = await parts.environment.open(self._task, mounts=door.mounts, sockets=door.sockets)
                stack.push_async_callback(self._close, sandbox)
                end = await self._converse(sandbox, session, door)
                async with self._hop_at("diff", Cause.ENVIRONMENT, None):
                    return end, await sandbox.diff()
        finally:
            self._hang_up(session)

    def _hang_up(self, session: PolicySession) -> SessionRecord:
        """End the conversation, once; the record that it leaves."""
        if self._record is None:
            self._record = session.close()
            self._parts.policy.release(self._rollout_id)
        return self._record

    async def _converse(self, sandbox: Sandbox, session: PolicySession, door: Door) -> End:
        watched = _Watched(sandbox)
        started = self._parts.clock.monotonic()
        ended: AgentEnd | None = None
        raised: Exception | None = None
        self._enter("agent")
        try:
            ended = await door.run(self._task, watched)
        except Exception as error:
            raised = error
        finally:
            record = self._hang_up(session)
            self._charge("generate", record.generate_s)
            self._charge("environment", self._parts.clock.monotonic() - started - record.generate_s)
        if record.error is not None:
            raise _stop(Cause.GENERATOR, record.error) from raised
        if raised is not None:
            raise _stop(Cause.ENVIRONMENT if raised in watched.errors else Cause.AGENT, raised) from raised
        if ended is None or ended.end not in NORMAL_ENDS:
            message = f"an agent ends as one of {', '.join(sorted(NORMAL_ENDS))}, not {ended and ended.end!r}"
            raise _Stop(End.FAILED, Failure(Cause.AGENT, message))
        self._masked |= ended.masked
        if ended.reason:
            self._counters[f"agent_{ended.reason}"] += 1
        if record.truncated:
            return End.TRUNCATED
        return End.COMPLETED if ended.end is End.TRUNCATED else ended.end

    async def _close(self, sandbox: Sandbox) -> None:
        """A sandbox that does not close is the environment's loss, not the rollout's."""
        try:
            async with asyncio.timeout(self._parts.limits.sandbox_start_s):
                await sandbox.close()
        except Exception:
            self._counters["sandbox_close_errors"] += 1

    def _hop_at(self, name: str, cause: Cause, limit_s: float | None) -> _Hop:
        """A hop with its deadline; what goes wrong inside leaves it as _Stop."""
        self._enter(name)
        return _Hop(self, name, cause, limit_s)

    def left(self, hop: str) -> None:
        """Charge the hop it was at."""
        if (charged := CHARGED.get(hop)) is not None:
            self._charge(charged, self._parts.clock.monotonic() - self._since)

    def _enter(self, hop: str) -> None:
        self._hop, self._since = hop, self._parts.clock.monotonic()

    def _charge(self, duration: str, seconds: float) -> None:
        self._durations[duration] = self._durations.get(duration, 0.0) + max(0.0, seconds)

    def _trajectory(self, end: End, reward: float | None, failure: Failure | None = None) -> Trajectory:
        record = self._record
        counters = self._counters + Counter(record.counters if record else {})
        return Trajectory(
            rollout_id=self._rollout_id, group_id=self._group_id, task_id=self._task.id,
            purpose=self._sampling.purpose, sequences=record.sequences if record else (), end=end, reward=reward,
            failure=failure, masked=self._masked, durations=dict(self._durations), counters=dict(counters),
            verdict=self._verdict,
        )
