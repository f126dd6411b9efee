"""From a plan to live parts: makes every role object through its plugin's factory, starts them, closes them.

Errors of a part are attributed here: whatever a plugin raises leaves as a PluginError that names plugin and role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ..contract import (
    Boundary, DeadlineExceeded, FabricHandle, Generator, GroupSpec, GrpoBenchError, Placement, PluginContext,
    PluginError, Purpose, Role, Ruleset, Sampling, Trainer, WorkerGroup, load_object,
)
from ..registry import Part, Plan
from ..steps.rollout import TARGET, PluginSpec, worker_config
from .seeds import branch

_POLICY = "grpo_bench.policy:make_policy"
_CLOSE_S = 60.0
_HEALTH_S = 2.0
_LOGGED = "the traceback is in the run's engine.log"

T = TypeVar("T")


class Assembly:
    """The live parts of one run. ``note`` is told what they want the user to know; ``trainer`` stands in the place of
    the one that the plan names. Paths that parts get are absolute: workers may have another working directory."""

    def __init__(self, plan: Plan, folder: Path, clock: Any, logger: Any, stop_token_ids: tuple[int, ...],
                 note: Callable[[str, str], None], trainer: Trainer | None = None) -> None:
        self.plan = plan
        self._folder = folder
        self._clock = clock
        self._logger = logger
        self._note = note
        profile = plan.profile
        max_context = profile.policy.max_context
        validation = profile.validation.sampling or profile.sampling
        self.sampling: dict[Purpose, Sampling] = {
            purpose: settings.stamp(purpose, stop_token_ids=stop_token_ids, max_context=max_context,
                                    seed=branch(plan.seed, "sampling", purpose))
            for purpose, settings in ((Purpose.TRAIN, profile.sampling), (Purpose.VALIDATION, validation))}
        self.fabric: FabricHandle = self._make(Role.FABRIC, None)
        self._training = Tracked(self.fabric)
        self.trainer: Trainer = trainer or self._make(Role.TRAINER, self._training)
        self.generator: Generator = self._make(Role.GENERATOR, self.fabric)
        self.ruleset: Ruleset | None = self._make(Role.RULESET, self.fabric) if Role.RULESET in plan.parts else None
        self.workers: WorkerGroup | None = None

    async def start(self) -> None:
        """The fabric, trainer and generator at once, then the rollout workers beside the generator's engines."""
        await self._started(Role.FABRIC, self.fabric.open(self.plan.placements))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._started(Role.TRAINER, self.trainer.start()))
            tasks.create_task(self._started(Role.GENERATOR, self.generator.start()))
        with self.attributed(Role.GENERATOR if self.plan.rollouts_beside_engines else Role.ENVIRONMENT):
            self.workers = await self.fabric.start_group(self._rollout_group())
        with self.attributed(Role.ENVIRONMENT):
            await within(self.workers.call_all("start"), self.plan.profile.limits.start_s,
                         "the start of the rollout workers", "limits.start_s")

    async def close(self) -> None:
        """Close everything that was started, the workers first; what fails or hangs is logged, not raised."""
        steps: list[tuple[str, Any]] = [("rollout workers", self.workers), ("generator", self.generator),
                                        ("trainer", self.trainer), ("fabric", self.fabric)]
        for name, part in steps:
            if part is None:
                continue
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await part.close()
            except Exception as error:
                self._logger.warning("close failed", part=name, error=repr(error), exc_info=True)

    async def lost_trainer(self) -> bool:
        """Whether a process that the trainer started has ended although nobody asked for it."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                return any([await group.lost() for group in self._training.groups])
        except Exception as error:
            self._logger.warning("whether the trainer lost a process is unknown", error=repr(error), exc_info=True)
            return False

    async def generator_health(self) -> Any:
        """What the generator says about itself, or why it does not."""
        try:
            async with asyncio.timeout(_HEALTH_S):
                return dict(await self.generator.health())
        except Exception as error:
            return repr(error)

    @contextmanager
    def attributed(self, role: Role, *, step: int | None = None, task: str | None = None) -> Iterator[None]:
        """Whatever is raised inside leaves as a GrpoBenchError that names this role's plugin."""
        with crossing(Boundary(plugin=self.plan.parts[role].name, role=role.value, task=task, step=step)):
            yield

    @contextmanager
    def between(self, *, step: int, pair: bool = True) -> Iterator[None]:
        """Work of several parts at once: an error that blames the role of one leaves with its plugin named as well. One
        that blames none leaves with both names where it is a ``pair``: trainer and generator."""
        try:
            yield
        except GrpoBenchError as error:
            at = error.boundary
            if at.role is None and not pair:
                error.boundary = replace(at, step=step)
            else:
                roles = [Role(at.role)] if at.role else [Role.TRAINER, Role.GENERATOR]
                plugins = "/".join(self.plan.parts[role].name for role in roles)
                error.boundary = replace(at, plugin=at.plugin or plugins, role="/".join(roles), step=step)
            raise

    async def _started(self, role: Role, work: Any) -> None:
        with self.attributed(role):
            await within(work, self.plan.profile.limits.start_s, "its start", "limits.start_s")

    def _make(self, role: Role, fabric: FabricHandle | None) -> Any:
        part = self.plan.parts[role]
        with self.attributed(role):
            return load_object(part.descriptor.factory)(self._context(role, fabric))

    def _context(self, role: Role, fabric: Any) -> PluginContext:
        profile = self.plan.profile
        return replace(
            bare_context(self.plan, self.plan.parts[role], self._folder, self._clock, self._logger), fabric=fabric,
            note=self._note,
            interpreter=self.plan.parts[role].interpreter,
            shared={"grpo": profile.grpo, "loss": profile.grpo.loss, "limits": profile.limits,
                    "sampling": self.sampling, "transport": self.plan.transport})

    def _rollout_group(self) -> GroupSpec:
        plan, profile = self.plan, self.plan.profile
        engines = self.generator.addresses()
        beside = plan.rollouts_beside_engines
        config = worker_config(
            environment=self._worker_part(Role.ENVIRONMENT), agent=self._worker_part(Role.AGENT),
            client=plan.parts[Role.GENERATOR].descriptor.client or "", engines=engines, **self._policy(),
            limits=profile.limits, program=plan.parts[Role.AGENT].descriptor.capabilities.form == "program",
            run_folder=str(self._folder.absolute()))
        placement = plan.placements.get("rollout", Placement())
        count = profile.rollout.workers or len(engines)
        return GroupSpec(name="rollout", target=TARGET, config=config,
                         placement=replace(placement, workers=count), colocate=engines[0].group if beside else None,
                         start_deadline_s=profile.limits.start_s)

    def _policy(self) -> dict[str, Any]:
        """What rollout workers make their policy of."""
        generator, policy = self.plan.parts[Role.GENERATOR], self.plan.profile.policy
        if (own := generator.descriptor.policy) is not None:
            return {"policy": own, "policy_config": {"generator": generator.config.model_dump(mode="json")}}
        return {"policy": _POLICY, "policy_config": {
            "folder": str(self.plan.checkpoint.checkpoint), "max_context": policy.max_context,
            "enable_thinking": policy.enable_thinking, "tool_parser": policy.tool_parser}}

    def _worker_part(self, role: Role) -> PluginSpec:
        part = self.plan.parts[role]
        model = type(part.config)
        return PluginSpec(part.descriptor.worker_factory or "", f"{model.__module__}:{model.__qualname__}",
                          part.config.model_dump(mode="json"), part.interpreter)


class Tracked:
    """A fabric in the hands of one part: ``groups`` are those that the part has started."""

    def __init__(self, fabric: FabricHandle) -> None:
        self.groups: list[WorkerGroup] = []
        self.open, self.connect, self.stacks = fabric.open, fabric.connect, fabric.stacks
        self.cpu_seconds, self.close = fabric.cpu_seconds, fabric.close
        self._fabric = fabric

    async def start_group(self, spec: GroupSpec) -> WorkerGroup:
        group = await self._fabric.start_group(spec)
        self.groups.append(group)
        return group


async def within(work: Awaitable[T], seconds: float, what: str, setting: str) -> T:
    """The result of ``work``; DeadlineExceeded, which names the setting, where it takes longer."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await work
    except TimeoutError:
        if not deadline.expired():
            raise
        raise DeadlineExceeded(f"{what} took longer than {seconds:g} s", hint=f"see {setting} in the profile") from None


@contextmanager
def crossing(boundary: Boundary) -> Iterator[None]:
    """Whatever is raised inside leaves as a GrpoBenchError with ``boundary``."""
    try:
        yield
    except GrpoBenchError as error:
        if error.boundary == Boundary():
            error.boundary = boundary
        elif error.boundary.step is None:
            error.boundary = replace(error.boundary, step=boundary.step)
        if isinstance(error, PluginError):
            error.hint = error.hint or _LOGGED
        raise
    except Exception as error:
        raise PluginError(f"{type(error).__name__}: {error}", boundary=boundary, hint=_LOGGED) from error


def bare_context(plan: Plan, part: Part, folder: Path, clock: Any, logger: Any) -> PluginContext:
    """The context of a part that starts no workers, such as an observer."""
    nothing: Any = None
    return PluginContext(
        config=part.config, fabric=nothing, placement=plan.placements.get(part.role.value, Placement()),
        run_folder=folder.absolute(), policy=plan.checkpoint, seed=branch(plan.seed, part.role.value),
        deterministic=plan.deterministic, clock=clock, logger=logger.bind(role=part.role.value))
