"""One attempt at a deferred evaluation: weights from disk, in the order of their steps, until some meet the target.

Generator, agents and environment start, and no trainer: a :class:`StoredTrainer` is in its place, so that a refit, its
probe, and engines that break down are those of a training. Once a validation is in the journal, it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ..contract import Kind, Phase, RunFolderError, Status, Trainer, settings_of
from ..observers import EVALUATION
from ..observers.durable import sync
from ..steps import Probe
from ..steps.transport import HF_FOLDER
from .assembly import Assembly
from .attempt import Attempt, Display, Opening, Outcome
from .conductor import Conductor
from .evaluation import Evaluation
from .recorder import Recorder
from .rollouts import RolloutPool, pool_of
from .series import Weights, read_weights
from .serving import Serving
from .stopping import Stops
from .stored import StoredTrainer
from .training import made_of, unscored_of
from .validating import Validator


async def conduct_evaluation(evaluation: Evaluation, clock: Any, *, display: Display = "quiet",
                             json_output: bool = False, stops: Stops | None = None) -> Outcome:
    """Evaluate on the current event loop, whatever its time is, until it is over or stopped."""
    _make_place(evaluation.folder)
    return await Evaluating(evaluation, clock, display, json_output).run(stops)


class Evaluating(Conductor):
    def __init__(self, evaluation: Evaluation, clock: Any, display: Display, json_output: bool) -> None:
        self._evaluation = evaluation
        self._stored = StoredTrainer(evaluation.plan.transport)
        super().__init__(evaluation.plan, Attempt(
            run=evaluation.run, folder=evaluation.folder, records=evaluation.folder / EVALUATION,
            written=len(evaluation.before), history=(*evaluation.training, *evaluation.before),
            software=evaluation.attempt,
        ), clock, display, json_output)

    def _opening(self) -> Opening:
        evaluation, plan = self._evaluation, self._plan
        if evaluation.before:
            data = {"from_step": evaluation.from_step, "from_seq": evaluation.from_seq,
                    "attempt": evaluation.attempt, "forced": list(evaluation.forced)}
            if plan.resolved != settings_of(evaluation.before):
                data["settings"] = plan.resolved
            return Opening(Kind.RESUMED, data, self._tally.scored and not evaluation.forced)
        validation, unscored = plan.profile.validation, self._unscored()
        return Opening(Kind.EVALUATION_STARTED, {
            "run": evaluation.run, "training_sha256": evaluation.training_sha256,
            "checkpoints": [weights.to_json() for weights in evaluation.series], "metric": validation.metric,
            "target": validation.target, "k": validation.k, "scored": not unscored, "unscored": unscored,
            "forced": list(evaluation.forced), **made_of(plan)}, not unscored)

    def _unscored(self) -> list[str]:
        """Why the run cannot count as a result: its training, its evaluation, or what differs between the two."""
        resumed = [f"its training was resumed although it differed: {line}" for line in self._tally.forced]
        differ = [f"its evaluation differs from its training: {line}" for line in self._evaluation.forced]
        return list(dict.fromkeys([*self._tally.started.get("unscored", ()), *resumed,
                                   *unscored_of(self._plan, self._clock), *differ]))

    async def _work_parts(self) -> tuple[Status, str | None]:
        if (decided := self._evaluation.decided) is not None:
            self._recorder.step = self._evaluation.from_step
            return decided, None
        return await super()._work_parts()

    def _assembled(self, stop_token_ids: tuple[int, ...]) -> Assembly:
        return Assembly(self._plan, self._folder, self._clock, self._logger, stop_token_ids, self._recorder.alarm,
                        trainer=cast("Trainer", self._stored))

    async def _perform(self, parts: Assembly, transport: Path) -> tuple[Status, str | None]:
        self._busy = evaluator = Evaluator(parts, self._stored, self._recorder, self._observers, self._clock, transport,
                                           self._evaluation.left)
        return Status.TARGET_MET if await evaluator.run() else self._evaluation.missed, None

    def _goes_on(self) -> str:
        return f"grpo-bench eval {self._folder} goes on with it"


def _make_place(folder: Path) -> None:
    place = folder / EVALUATION
    try:
        place.mkdir(exist_ok=True)
        sync(folder)
    except OSError as error:
        raise RunFolderError(f"cannot make {place}: {error.strerror}",
                             hint="the run folder must be writable") from error


class Evaluator:
    """Evaluates weights on started parts."""

    def __init__(self, parts: Assembly, stored: StoredTrainer, recorder: Recorder, observers: Any, clock: Any,
                 transport_folder: Path, left: Sequence[Weights]) -> None:
        refit, limits = parts.plan.profile.refit, parts.plan.profile.limits
        self._parts = parts
        self._stored = stored
        self._recorder = recorder
        self._left = left
        self._pool = pool_of(parts, recorder, clock, lambda cause: self._serving.recover(cause))
        self._probe = Probe(refit.probe_bound, refit.probe_growth)
        self._incomparable = parts.plan.incomparable or _unanswered(left)
        self._serving = Serving(parts, self._pool, recorder, clock, transport_folder,
                                None if self._incomparable else self._probe,
                                transfer_s=max(limits.refit_s, limits.checkpoint_s),
                                lying=stored.folder if parts.plan.transport == HF_FOLDER else None)
        self._validator = Validator(parts, self._pool, self._serving, recorder, observers, clock)

    @property
    def pool(self) -> RolloutPool:
        return self._pool

    def missing(self) -> list[int]:
        """The tasks that the current validation still waits for."""
        return sorted(self._validator.missing)

    async def run(self) -> bool:
        """True as soon as some weights meet the target."""
        if self._incomparable:
            self._recorder.alarm("probe_not_compared",
                                 f"refits are not checked by log-probabilities: {self._incomparable}")
        for number, weights in enumerate(self._left):
            self._recorder.step = weights.step
            self._recorder.enter(Phase.REFIT)
            async with self._serving.trainer:
                if number:
                    await self._serving.pause()
                self._stored.open(weights, self._probe)
                await self._serving.refit(weights.step)
            if await self._validator.validate(weights.step):
                return True
        return False


def _unanswered(left: Sequence[Weights]) -> str:
    _, probe = read_weights(left[0])
    return "" if probe.answers is not None else "they were not while it trained"
