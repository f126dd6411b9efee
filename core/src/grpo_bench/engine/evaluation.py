"""A deferred evaluation before it starts: what was trained, whether this is still the same, and what is left to do.

The run's folder says what was trained, and may have been copied to another host. It is planned again and compared as
for a resumption; only values that say how and where rollouts run may be set anew. The training's journal is locked and
never written. An evaluation has a journal of its own: a weight version whose validation stands there is not evaluated
again, whatever became of the attempt. Nothing is written here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, Missing, RegistryError, Role, RunFolderError, Status, divided, settings_of
from ..observers import journal_sha256, metric_label, read_run, summarise
from ..observers.journal import FILE as JOURNAL
from ..observers.journal import lock
from ..registry import Plan, make_plan, read_object, recorded
from ..registry.fit import stored_transport
from ..registry.names import dotted
from ..registry.overrides import parse_overrides
from .resume import (
    CHECKPOINTS, FINISHED, PROFILE, differences, leads_on, provenance_file, refuse_simulated, refused, unequal,
)
from .series import Weights, series_of
from .validating import due_steps

_CHECKPOINT = ("policy", "checkpoint")
_SECTIONS = ("generator", "environment", "agent", "hardware", "fabric", "limits", "rollout")
CAN_BE_SET = (dotted(_CHECKPOINT), *(f"{section}.*" for section in _SECTIONS))
"""What an evaluation may set: how and where it runs."""


@dataclass(frozen=True)
class Evaluation:
    """An attempt at an evaluation. ``training`` and ``before`` are the events of the training and of earlier attempts,
    ``series`` the weights of all steps that are due, ``forced`` what differs from the training."""

    plan: Plan
    folder: Path
    training: tuple[Event, ...]
    before: tuple[Event, ...]
    training_sha256: str
    series: tuple[Weights, ...]
    forced: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        return self.training[0].data["run"]

    @property
    def attempt(self) -> int:
        if not self.before:
            return 1
        return 1 + max((event.data["attempt"] for event in self.before if event.kind == Kind.RESUMED), default=1)

    @property
    def left(self) -> list[Weights]:
        """What is not evaluated yet."""
        done = {event.step for event in validations(self.before)}
        return [weights for weights in self.series if weights.step not in done]

    @property
    def from_step(self) -> int:
        return max((event.step or 0 for event in validations(self.before)), default=0)

    @property
    def from_seq(self) -> int:
        """The first event that did not happen, as far as this attempt is concerned."""
        return max((event.seq + 1 for event in validations(self.before)), default=1)

    @property
    def decided(self) -> Status | None:
        """What it came to, where nothing is left to do."""
        if any(event.data["target_met"] for event in validations(self.before)):
            return Status.TARGET_MET
        return None if self.left else self.missed

    @property
    def missed(self) -> Status:
        """What it comes to where no weights meet a target."""
        return Status.COMPLETED if self.plan.profile.validation.metric is None else Status.TARGET_MISSED


@dataclass(frozen=True)
class Verdict:
    """An evaluation that has ended, the summary of its run, and what its metric is called."""

    status: Status
    summary: Mapping[str, Any]
    metric: str


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep trainings and evaluations of a run away; RunFolderError where one is under way or there is none."""
    journal = folder / JOURNAL
    if not (folder / PROFILE).is_file() or not journal.is_file():
        raise RunFolderError(f"{folder} is no folder of a run that has started")
    try:
        descriptor = os.open(journal, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RunFolderError(f"cannot open {journal}: {error.strerror}") from error
    try:
        lock(descriptor, journal)
        yield
    finally:
        os.close(descriptor)


def prepare_evaluation(folder: Path, *, overrides: Sequence[str] = (), force: bool = False,
                       plan: Plan | None = None) -> Evaluation | Verdict:
    """What is to be evaluated in ``folder``, which the caller has :func:`alone`. ``plan`` is the one that was trained,
    where that was done in this process. RunFolderError where there is nothing to evaluate, where the series of weights
    has gaps, or where it would not be the same run any more; with ``force`` differences are noted instead."""
    chosen = _chosen(overrides)
    training, before = map(tuple, divided(read_run(folder)))
    _check_trained(folder, training)
    if before and before[-1].kind == Kind.RUN_ENDED and before[-1].data["status"] in FINISHED:
        summary = summarise([*training, *before])
        return Verdict(Status(before[-1].data["status"]), summary, metric_label(summary["metric"], before[0].data["k"]))
    forced: tuple[str, ...] = ()
    if plan is None:
        plan = _planned(folder, training, overrides)
        forced = tuple(_differences(folder, training, plan, chosen))
        if forced and not force:
            raise refused(f"{folder} would not be evaluated as what was trained", forced)
    done = {event.step for event in validations(before)}
    steps = due_steps(plan)
    series = series_of(training, steps, folder / CHECKPOINTS, sound={*steps} - done,
                       hint="restore them from a copy: a series that is not whole is not evaluated")
    placements = {name: place for name, place in plan.placements.items() if name != Role.TRAINER}
    return Evaluation(replace(plan, transport=stored_transport(plan.parts[Role.GENERATOR].descriptor),
                              placements=placements), folder, training, before,
                      journal_sha256(folder / JOURNAL), tuple(series), forced)


def validations(events: Iterable[Event]) -> list[Event]:
    """Those of an evaluation's validations that count, as the journal numbers them."""
    kept: list[Event] = []
    for event in events:
        if event.kind == Kind.RESUMED:
            kept = [earlier for earlier in kept if earlier.seq < event.data["from_seq"]]
        elif event.kind == Kind.VALIDATION:
            kept.append(event)
    return kept


def set_otherwise(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> Iterator[str]:
    """How settings of an evaluation differ from the training's where they may not, a line each."""
    allowed = {**trained, **{section: evaluated.get(section) for section in _SECTIONS}}
    section, key = _CHECKPOINT
    if all(isinstance(settings.get(section), Mapping) for settings in (trained, evaluated)):
        allowed[section] = {**trained[section], key: evaluated[section].get(key)}
    return unequal("", allowed, evaluated)


def _check_trained(folder: Path, training: Sequence[Event]) -> None:
    refuse_simulated(folder, training)
    if not training:
        raise RunFolderError(f"{folder} holds no run that has started")
    settings = settings_of(training)
    if not settings.get("validation", {}).get("deferred"):
        raise RunFolderError(f"{folder} validated while it trained: there is nothing to evaluate",
                             hint="validation.deferred = true leaves that to grpo-bench eval")
    if training[-1].kind != Kind.RUN_ENDED or training[-1].data["status"] != Status.TRAINED:
        onward = f"grpo-bench resume {folder} goes on with it" if leads_on(settings) else "start a new run"
        raise RunFolderError(f"the training in {folder} has not come to its end", hint=onward)


def _planned(folder: Path, training: Sequence[Event], overrides: Sequence[str]) -> Plan:
    """The trainer does not run, so it need not be able to here: what it said about itself is in the journal."""
    facts = training[0].data.get("parts", {}).get(Role.TRAINER, {}).get("facts", {})
    profile = recorded(folder / PROFILE, training[0].data["profile"], overrides)
    try:
        return make_plan(profile, idle={Role.TRAINER: facts})
    except Missing as error:
        error.hint = "; ".join([*filter(None, [error.hint]), "what lies or runs elsewhere here is said by --set, as in "
                                "--set policy.checkpoint=DIR"])
        raise


def _chosen(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Sections, or the checkpoint, that are set anew; RegistryError where one has to stay as it was."""
    chosen, wrong = [], []
    for section, value in parse_overrides(overrides).items():
        if section in _SECTIONS:
            chosen.append((section,))
        elif section == _CHECKPOINT[0] and isinstance(value, dict) and value.keys() == {_CHECKPOINT[1]}:
            chosen.append(_CHECKPOINT)
        else:
            wrong += [dotted((section, key)) for key in value] if isinstance(value, dict) else [section]
    if wrong:
        raise RegistryError(f"--set {', '.join(wrong)}: an evaluation changes nothing of what was trained and of how "
                            "it is judged", hint=f"it can set {', '.join(CAN_BE_SET)}")
    return chosen


def _differences(folder: Path, training: Sequence[Event], plan: Plan,
                 chosen: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """What differs from the training, what was chosen anew left out, and the trainer's environment, which does not
    run."""
    settings = {key: dict(value) if isinstance(value, Mapping) else value
                for key, value in settings_of(training).items()}
    for section, *inner in chosen:
        if inner:
            settings[section][inner[0]] = plan.resolved[section][inner[0]]
        else:
            settings[section] = plan.resolved[section]
    attempt = max((event.data["attempt"] for event in training if event.kind == Kind.RESUMED), default=1)
    before = read_object(folder / provenance_file(attempt))
    now = dict(plan.provenance)
    for software in (before, now):
        environments = software.get("environments") or {}
        software["environments"] = {role: found for role, found in environments.items() if role != Role.TRAINER}
    return differences(settings, plan.resolved, before, now)
