"""Validation of the weights that the generator has: when one is due, how it runs, what it says.

A run that validates while it trains and a deferred evaluation validate alike: nothing else is in flight, each task has
its k rollouts, and what ended without a sample beyond ``limits.max_failed_share`` makes the validation fail. Observers
are told of the rollouts, and these are on the disk, before the event is: what the journal says was validated is whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from ..contract import (
    Boundary, Group, Kind, Phase, PlanError, Position, Purpose, Role, Ruleset, Task, Trajectory, ValidationReport,
    load_object,
)
from ..registry import Plan
from ..steps import RewardSummary, check_failed_share, target_met, validation_report
from .assembly import Assembly, bare_context, crossing
from .recorder import Recorder
from .rollouts import RolloutPool
from .serving import Serving


def is_due(plan: Plan, ruleset: Ruleset | None, step: int) -> bool:
    """Whether to validate after ``step`` (0: before the first)."""
    profile = plan.profile
    if ruleset is not None:
        return ruleset.should_validate(step, profile.grpo.max_steps)
    return profile.validation.is_due(step, profile.grpo.max_steps)


def due_steps(plan: Plan, first: int = 1) -> list[int]:
    """The steps from ``first`` on after which a validation is due (0: before the first step)."""
    ruleset = _ruleset(plan)
    return [step for step in range(first, plan.profile.grpo.max_steps + 1) if is_due(plan, ruleset, step)]


def check_deferred(plan: Plan) -> None:
    """PlanError where validations are deferred and none is ever due."""
    if plan.profile.validation.deferred and not due_steps(plan):
        raise PlanError("validation.deferred: no validation is due in any step, so there is nothing to evaluate",
                        hint="see validation.period and validation.start_at, or the ruleset's schedule")


def _ruleset(plan: Plan) -> Ruleset | None:
    """One that only answers questions."""
    part = plan.parts.get(Role.RULESET)
    if part is None:
        return None
    context = bare_context(plan, part, Path(), None, structlog.get_logger())
    with crossing(Boundary(plugin=part.name, role=part.role.value)):
        return load_object(part.descriptor.factory)(replace(context, shared={"grpo": plan.profile.grpo}))


class Validator:
    """Validates on started parts. ``missing`` are the places of the tasks that the current validation waits for."""

    def __init__(self, parts: Assembly, pool: RolloutPool, serving: Serving, recorder: Recorder, observers: Any,
                 clock: Any) -> None:
        self.missing: set[int] = set()
        self._parts = parts
        self._settings = parts.plan.profile.validation
        self._limits = parts.plan.profile.limits
        self._pool = pool
        self._serving = serving
        self._recorder = recorder
        self._observers = observers
        self._clock = clock

    def is_due(self, step: int) -> bool:
        return is_due(self._parts.plan, self._parts.ruleset, step)

    async def validate(self, step: int) -> bool:
        """Validate the weights after ``step``; True where that meets the target."""
        self._recorder.enter(Phase.DRAIN)
        alone = False
        while not alone:  # what a lost engine held up goes on once it is back, and is waited for again
            alone = await self._pool.drain()
            await self._serving.recover("")
        self._pool.open_gates(Purpose.VALIDATION)
        self._recorder.enter(Phase.VALIDATION)
        report, groups = await self._rolled(step)
        self._pool.open_gates()
        met = self._met(report)
        self._observers.validated(report, groups)
        self._observers.sync()
        self._recorder.emit(
            Kind.VALIDATION, version=report.version, k=report.k, tasks=report.tasks, passed=report.passed,
            metrics=dict(report.metrics), standard_error=report.standard_error, seconds=report.seconds,
            ends=dict(report.ends), target_met=met)
        return met

    def checked(self, trajectories: Sequence[Trajectory], step: int) -> RewardSummary:
        """What rollouts came to; RolloutShareExceeded where too many ended without a sample."""
        with self._parts.between(step=step, pair=False):
            return check_failed_share(trajectories, self._limits.max_failed_share, step)

    def _met(self, report: ValidationReport) -> bool:
        settings, ruleset = self._settings, self._parts.ruleset
        if settings.metric is None or settings.target is None:
            return False
        return ruleset.met(report) if ruleset is not None else target_met(report, settings.metric, settings.target)

    async def _rolled(self, step: int) -> tuple[ValidationReport, list[Group]]:
        started = self._clock.monotonic()
        tasks = self._parts.plan.validation_tasks
        self.missing = set(range(len(tasks)))
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(self._group(task, index, step)) for index, task in enumerate(tasks)]
        groups = [task.result() for task in running]
        self.checked([trajectory for found in groups for trajectory in found.trajectories], step)
        return validation_report(step, self._serving.version, groups, self._settings.k,
                                 self._clock.monotonic() - started), groups

    async def _group(self, task: Task, index: int, step: int) -> Group:
        found = await self._pool.group(
            task, name=f"v{step}.{index}", group_id=index, position=Position(0, index), target=step,
            size=self._settings.k, purpose=Purpose.VALIDATION)
        self.missing.discard(index)
        return found
