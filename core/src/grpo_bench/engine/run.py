"""A run from plan to exit code: its folder, its training, its evaluation where that was deferred.

The run folder is made first and holds what was planned before anything starts. An evaluation that follows in the same
process has parts, journal and account of its own, and goes on in another process where it is cut off. So has a training
that goes on by itself after its trainer lost a process: a further attempt, planned again as ``resume`` would.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..contract import GrpoBenchError, InputError, Interrupted, Status
from ..observers import Tally
from ..registry import Plan
from .attempt import Display, Outcome
from .clock import LaterClock, RealClock, run_real
from .evaluating import conduct_evaluation
from .evaluation import Evaluation, Verdict, alone, prepare_evaluation
from .folder import make_folder, record_software
from .resume import Resumption, prepare
from .stopping import Stops
from .training import conduct
from .validating import check_deferred

EXIT_CODES = {
    Status.TARGET_MET: 0, Status.COMPLETED: 0, Status.TRAINED: 0, Status.TARGET_MISSED: 1, Status.FAILED: 1,
    Status.INTERRUPTED: 130,
}


def execute(plan: Plan, runs: Path, *, progress: bool, json_output: bool, evaluation: bool = True) -> int:
    """Run ``plan`` in a new folder under ``runs``; returns the process's exit code. With ``evaluation`` False one that
    is deferred is left for later."""
    check_deferred(plan)
    return _until_over(plan, lambda: make_folder(plan, runs, datetime.now(UTC)), None, progress, json_output,
                       evaluation)


def go_on(plan: Plan, folder: Path, resumption: Resumption | None, *, progress: bool, json_output: bool,
          evaluation: bool = True) -> int:
    """Run ``plan`` in the folder of an interrupted run; returns the process's exit code."""
    def place() -> Path:
        if resumption is None:
            record_software(folder, 1, plan)
        return folder

    return _until_over(plan, place, resumption, progress, json_output, evaluation)


def evaluate(folder: Path, *, overrides: Sequence[str] = (), force: bool = False, progress: bool,
             json_output: bool) -> int:
    """Evaluate what was trained in ``folder``, or go on with that; returns the process's exit code, that of the verdict
    where there is one already."""
    with alone(folder):
        found = prepare_evaluation(folder, overrides=overrides, force=force)
        if isinstance(found, Verdict):
            _repeat(found, folder, json_output)
            return EXIT_CODES[found.status]
        with Stops() as stops:
            outcome = _lived(folder, lambda clock: conduct_evaluation(
                found, clock, display=_display(progress), json_output=json_output, stops=stops))
            _say(outcome, json_output)
    return _exit_code(outcome)


def _until_over(plan: Plan, place: Callable[[], Path], resumption: Resumption | None, progress: bool,
                json_output: bool, evaluation: bool) -> int:
    with Stops() as stops:
        folder = place()
        outcome = _lived(folder, lambda clock: conduct(
            plan, folder, clock, display=_display(progress), json_output=json_output, stops=stops,
            resumption=resumption))
        for number in range(1, plan.profile.limits.trainer_restarts + 1):
            if outcome.lost_trainer and not stops.came:
                outcome = _again(plan, outcome, number, progress, json_output, stops)
        if outcome.status is Status.TRAINED and evaluation:
            outcome = _evaluated(plan, outcome, progress, json_output, stops)
        _say(outcome, json_output)
    return _exit_code(outcome)


def _again(plan: Plan, lost: Outcome, number: int, progress: bool, json_output: bool, stops: Stops) -> Outcome:
    """What became of a further attempt at a training whose trainer lost a process; all parts of the last are closed."""
    assert lost.error is not None
    lost.error.__traceback__ = lost.error.__cause__ = lost.error.__context__ = None  # all that the attempt held
    clock, most = LaterClock(RealClock()), plan.profile.limits.trainer_restarts
    try:
        plan, resumption = prepare(lost.folder)
        assert resumption is not None
    except GrpoBenchError as error:
        why = f"it could not go on by itself: {error.message}"
        lost.error.hint = "; ".join([*filter(None, [lost.error.hint]), why])
        return replace(lost, lost_trainer=False)
    cause = (f"the trainer lost a process ({lost.error.message}); the run goes on from step {resumption.from_step}, "
             f"restart {number} of {most}")
    return _lived(lost.folder, lambda _: conduct(
        plan, lost.folder, clock, display=_display(progress), json_output=json_output, stops=stops,
        resumption=replace(resumption, cause=cause)))


def _evaluated(plan: Plan, trained: Outcome, progress: bool, json_output: bool, stops: Stops) -> Outcome:
    """What the evaluation of a training that just ended came to."""
    folder, advice = trained.folder, f"grpo-bench eval {trained.folder} evaluates it"
    if stops.came:
        error = Interrupted("the run was interrupted before its evaluation", hint=advice)
        return Outcome(Status.INTERRUPTED, trained.summary, folder, error)
    try:
        with alone(folder):
            found = prepare_evaluation(folder, plan=plan)
            assert isinstance(found, Evaluation)
            return _lived(folder, lambda clock: conduct_evaluation(
                found, LaterClock(clock), display=_display(progress), json_output=json_output, stops=stops))
    except GrpoBenchError as error:
        error.hint = "; ".join([*filter(None, [error.hint]), f"after that, {advice}"])
        return Outcome(Status.FAILED, trained.summary, folder, error)


def _lived(folder: Path, make: Callable[[RealClock], Coroutine[Any, Any, Outcome]]) -> Outcome:
    """What became of it on the machine's clock."""
    try:
        return run_real(make)
    except GrpoBenchError as error:  # nothing was recorded: the run folder cannot be used
        summary = {**Tally().summary(), "run": folder.name, "status": Status.FAILED.value}
        return Outcome(Status.FAILED, summary, folder, error)


def _display(progress: bool) -> Display:
    return "progress" if progress else "quiet"


def _say(outcome: Outcome, json_output: bool) -> None:
    with suppress(OSError, ValueError):  # a run is not undone by nobody reading what it says
        if outcome.error is not None:
            print(f"grpo-bench: {outcome.error}", file=sys.stderr, flush=True)
    with suppress(BrokenPipeError):
        if json_output:
            print(json.dumps(outcome.summary), flush=True)


def _repeat(verdict: Verdict, folder: Path, json_output: bool) -> None:
    summary = verdict.summary
    value = f", {verdict.metric} {summary['value']:.3f} after step {summary['steps']}" if verdict.metric else ""
    print(f"{folder} has been evaluated: {verdict.status.replace('_', ' ')}{value}",
          file=sys.stderr if json_output else sys.stdout)
    if json_output:
        print(json.dumps(dict(summary)))


def _exit_code(outcome: Outcome) -> int:
    return 2 if isinstance(outcome.error, InputError) else EXIT_CODES[outcome.status]
