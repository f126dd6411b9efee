"""One attempt at a training: the steps of a run, and their validations where these are not deferred."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..contract import GrpoBenchError, Kind, Role, Status, WorkerLost
from ..registry import Plan
from .assembly import Assembly
from .attempt import Attempt, Display, Opening, Outcome
from .checkpoints import CheckpointStore
from .clock import VirtualClock
from .conductor import Conductor
from .loop import Loop
from .resume import CHECKPOINTS, SIMULATED, Resumption, leads_on
from .stopping import Stops


async def conduct(plan: Plan, folder: Path, clock: Any, *, display: Display = "quiet", json_output: bool = False,
                  stops: Stops | None = None, resumption: Resumption | None = None) -> Outcome:
    """Run ``plan`` in ``folder`` on the current event loop, whatever its time is, until it is over or stopped."""
    return await Training(plan, folder, clock, display, json_output, resumption).run(stops)


class Training(Conductor):
    def __init__(self, plan: Plan, folder: Path, clock: Any, display: Display, json_output: bool,
                 resumption: Resumption | None) -> None:
        history = resumption.history if resumption else ()
        super().__init__(plan, Attempt(
            run=history[0].data["run"] if history else folder.name, folder=folder, records=folder,
            written=len(history), history=history, software=resumption.attempt if resumption else None,
        ), clock, display, json_output)
        self._resumption = resumption
        self._loop: Loop | None = None
        self._lost_trainer = False

    async def run(self, stops: Stops | None) -> Outcome:
        return replace(await super().run(stops), lost_trainer=self._lost_trainer)

    def _opening(self) -> Opening:
        facts = facts_of(self._plan, self._attempt.run, self._clock)
        resumption = self._resumption
        if resumption is None:
            return Opening(Kind.RUN_STARTED, facts, facts["scored"])
        data: dict[str, Any] = {"from_step": resumption.from_step, "from_seq": resumption.from_seq,
                                "attempt": resumption.attempt, "forced": list(resumption.forced)}
        if resumption.forced:
            data["settings"] = self._plan.resolved
        if (picture := self._plan.layout.picture()).hosts:
            data["layout"] = asdict(picture)
        return Opening(Kind.RESUMED, data, facts["scored"] and not (self._tally.forced or resumption.forced),
                       ("trainer_lost", resumption.cause) if resumption.cause else None)

    def _assembled(self, stop_token_ids: tuple[int, ...]) -> Assembly:
        return Assembly(self._plan, self._folder, self._clock, self._logger, stop_token_ids,
                        self._recorder.alarm)

    async def _perform(self, parts: Assembly, transport: Path) -> tuple[Status, str | None]:
        store = CheckpointStore(self._folder.absolute() / CHECKPOINTS, self._plan.profile.checkpoint.keep)
        self._busy = self._loop = loop = Loop(parts, self._recorder, self._observers, store, self._clock,
                                              self._attempt.run, transport)
        status = await loop.run(self._resumption.restored if self._resumption else None)
        return status, None if status is Status.INTERRUPTED else await loop.finish()

    def _ends_soon(self) -> bool:
        return bool(self._plan.profile.checkpoint.period) and self._loop is not None and self._loop.end_after_step()

    async def _failed(self, error: GrpoBenchError) -> None:
        """Whether it is a process of the trainer that was lost may be seen by others first, as in a refit."""
        if not self._plan.profile.limits.trainer_restarts or self._parts is None:
            return
        blamed = isinstance(error, WorkerLost) and error.boundary.role == Role.TRAINER
        self._lost_trainer = blamed or await self._parts.lost_trainer()

    def _goes_on(self) -> str:
        if self._plan.modelled:
            return "grpo-bench simulate makes another simulation"
        if leads_on(self._plan.resolved):
            return f"grpo-bench resume {self._folder} goes on with it"
        return "start a new run: this one saves no full checkpoints to go on from"


def facts_of(plan: Plan, run: str, clock: Any) -> dict[str, Any]:
    """The data of a run's first event: all that its views need to know about it."""
    profile = plan.profile
    unscored = unscored_of(plan, clock)
    return {
        "run": run, "profile": plan.name, "seed": plan.seed, "target": profile.validation.target,
        "metric": profile.validation.metric, "max_steps": profile.grpo.max_steps,
        "prompts_per_step": profile.grpo.prompts_per_step,
        "generations_per_prompt": profile.grpo.generations_per_prompt, "scored": not unscored, "unscored": unscored,
        **({"modelled": plan.modelled, "passes_at": plan.passes_at} if plan.modelled else {}), **made_of(plan),
    }


def unscored_of(plan: Plan, clock: Any) -> list[str]:
    """Why what runs under ``clock`` cannot count as a result."""
    return [*([SIMULATED] if plan.modelled else []), *plan.unscored,
            *(["its time was virtual"] if isinstance(clock, VirtualClock) else [])]


def made_of(plan: Plan) -> dict[str, Any]:
    """What runs, for the first event of a journal."""
    described = plan.to_json()
    keys = ("parts", "observers", "placements", "layout", "tasks")
    return {"settings": plan.resolved, **{key: described[key] for key in keys}}
