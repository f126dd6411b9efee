"""The rollout worker: what a fabric starts to run rollouts, and the only way the engine reaches them.

A worker process holds one environment, one agent, one policy (gateway and token record) and one generator client, all
made from ``module:function`` strings, so that nothing but plain data crosses the process boundary. ``run`` plays one
rollout under the admission limit; each lives in an :class:`~grpo_bench.steps.attempt.Attempt` and ends as a
Trajectory whatever happens to it. Only cancellation of the call itself is an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_bench.contract import (
    Address, Environment, LimitSettings, Sampling, Task, Trajectory, WorkerContext, load_object,
)

from .attempt import Attempt, Parts, Policy
from .meeting import AsProgram, InProcess, Meeting


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """A part made inside a worker: ``factory`` is ``module:function``, called with ``(config, WorkerContext)``;
    ``model`` is the ``module:Class`` that ``config`` (plain data) is validated by."""

    factory: str
    model: str
    config: Mapping[str, Any]
    interpreter: str | None = None
    """The python of the part's own environment; None: it has none."""


def worker_config(*, environment: PluginSpec, agent: PluginSpec, client: str, engines: tuple[Address, ...],
                  policy: str, policy_config: Mapping[str, Any], limits: LimitSettings, program: bool = False,
                  run_folder: str = "") -> dict[str, Any]:
    """The ``config`` of a rollout worker's GroupSpec, as plain data with ``target`` :data:`TARGET`.

    ``client`` (``module:function``) makes a GeneratorClient from the Remotes of ``engines``; ``policy`` makes the
    policy from ``(policy_config, client, clock)``. ``program`` says that the agent is one (a ProgramAgent).
    """
    def plain(spec: PluginSpec) -> dict[str, Any]:
        return {"factory": spec.factory, "model": spec.model, "config": dict(spec.config),
                "interpreter": spec.interpreter}

    return {"environment": plain(environment), "agent": plain(agent), "client": client, "engines": engines,
            "policy": policy, "policy_config": dict(policy_config), "limits": limits.model_dump(), "program": program,
            "run_folder": run_folder}


TARGET = "grpo_bench.steps.rollout:make"
"""What a GroupSpec of rollout workers names as its target."""


def make(context: WorkerContext) -> RolloutWorker:
    """A worker that is not started yet."""
    return RolloutWorker(context)


@dataclass(slots=True)
class _Running:
    attempt: Attempt
    task: asyncio.Task[Trajectory]
    aborted: bool = field(default=False)


class RolloutWorker:
    """Runs rollouts, at most ``limits.concurrency`` at once, the others queueing in order of arrival."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._limits = LimitSettings.model_validate(context.config["limits"])
        self._places = asyncio.Semaphore(self._limits.concurrency)
        self._running: dict[str, _Running] = {}
        self._parts: Parts | None = None

    async def start(self) -> None:
        """Make the parts and start the environment, once; ``close`` undoes either."""
        if self._parts is not None:
            return
        config = self._context.config
        remotes = [await self._context.connect(address) for address in config["engines"]]
        client = load_object(config["client"])(remotes)
        environment: Environment = self._part("environment")
        policy: Policy = load_object(config["policy"])(config["policy_config"], client, self._context.clock)
        meeting = self._meeting(policy)
        self._parts = Parts(environment, meeting, policy, self._context.clock, self._limits)
        await environment.start()
        await meeting.start()

    def _meeting(self, policy: Policy) -> Meeting:
        agent, context = self._part("agent"), self._context
        if not context.config["program"]:
            return InProcess(agent)
        return AsProgram(agent, policy.gateway(), Path(context.rendezvous), context.rank)

    def _part(self, name: str) -> Any:
        spec = self._context.config[name]
        config = load_object(spec["model"]).model_validate(spec["config"])
        return load_object(spec["factory"])(config, replace(
            self._context, config=config, interpreter=spec["interpreter"],
            run_folder=self._context.config["run_folder"]))

    async def run(self, task: Task, rollout_id: str, group_id: int, sampling: Sampling) -> Trajectory:
        """Play one rollout to its end. Whatever fails is told in the trajectory."""
        if self._parts is None:
            raise RuntimeError("the rollout worker has not been started")
        if rollout_id in self._running:
            raise ValueError(f"rollout {rollout_id} is running already")
        attempt = Attempt(self._parts, self._places, task, rollout_id, group_id, sampling)
        running = _Running(attempt, asyncio.create_task(attempt.run(), name=f"rollout {rollout_id}"))
        self._running[rollout_id] = running
        try:
            return await running.task
        except asyncio.CancelledError:
            if running.aborted:
                return attempt.aborted()
            raise
        finally:
            del self._running[rollout_id]

    async def abort(self, rollout_id: str) -> None:
        """End a rollout as FAILED, with what it recorded so far; unknown ids are fine."""
        if (running := self._running.get(rollout_id)) is not None:
            running.aborted = True
            running.task.cancel()
            await asyncio.wait([running.task])

    def waiting(self) -> dict[str, dict[str, Any]]:
        """For each rollout in flight: its task, the hop it is at, and for how many seconds."""
        return {name: running.attempt.waiting() for name, running in self._running.items()}

    async def close(self) -> None:
        """Abort what runs and close the environment."""
        for rollout_id in list(self._running):
            await self.abort(rollout_id)
        if self._parts is not None:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._parts.environment.close)
                stack.push_async_callback(self._parts.policy.close)
                stack.push_async_callback(self._parts.meeting.close)

