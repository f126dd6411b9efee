"""Going on with a run that was interrupted: what it was, whether this is still the same, and where it goes on.

The folder says what ran: the profile, the software, the tasks. All of that is planned again and compared; a difference
is an error that names it, unless the resumption is forced, and then the journal keeps it. Nothing is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, RunFolderError, Status, settings_of
from ..observers import read_training
from ..observers.journal import FILE as JOURNAL
from ..registry import Plan, make_plan, read_object, recorded
from .checkpoints import CheckpointStore, Restored
from .series import series_of
from .validating import due_steps

PROFILE = "profile.json"
CHECKPOINTS = "checkpoints"
SIMULATED = "it is a simulation"
"""Why one cannot count as a result."""
FINISHED = (Status.TARGET_MET, Status.TARGET_MISSED, Status.COMPLETED)
_COMPARED = ("python", "distributions", "libraries", "environments", "policy", "tasks")
"""What of the provenance has to be equal."""
_SHOWN = 8


@dataclass(frozen=True)
class Resumption:
    """A later attempt of a run: which one, the events of the earlier ones, the checkpoint it goes on from (None: from
    the start), what differs from the attempt before, and why it goes on where nobody asked for that."""

    attempt: int
    history: tuple[Event, ...]
    restored: Restored | None
    forced: tuple[str, ...] = ()
    cause: str = ""

    @property
    def from_step(self) -> int:
        return self.restored.step if self.restored else 0

    @property
    def from_seq(self) -> int:
        """The first event that did not happen, as far as this attempt is concerned."""
        return self.restored.seq + self.restored.recorded if self.restored else 1


def prepare(folder: Path, *, force: bool = False) -> tuple[Plan, Resumption | None]:
    """Plan again what ``folder`` holds; no resumption where that never started. RunFolderError where it is no run, has
    finished, or would not be the same run any more; with ``force`` differences are noted instead."""
    if not (folder / PROFILE).is_file():
        raise RunFolderError(f"{folder} is no run folder: it has no {PROFILE}")
    history = tuple(read_training(folder)) if (folder / JOURNAL).exists() else ()
    refuse_simulated(folder, history)
    if not history:
        if (folder / CHECKPOINTS).exists():
            raise RunFolderError(f"{folder} has checkpoints, but its {JOURNAL} is empty or gone",
                                 hint="restore the journal from a copy")
        return make_plan(recorded(folder / PROFILE, read_object(folder / provenance_file(1)).get("profile", ""))), None
    _check_unfinished(folder, history)
    attempt = 1 + max((event.data["attempt"] for event in history if event.kind == Kind.RESUMED), default=1)
    plan = make_plan(recorded(folder / PROFILE, history[0].data["profile"]))
    found = tuple(_differences(history, plan, read_object(folder / provenance_file(attempt - 1))))
    if found and not force:
        raise refused(f"{folder} would not be the same run any more", found)
    restored = CheckpointStore(folder / CHECKPOINTS, plan.profile.checkpoint.keep).latest(history)
    if restored is not None and plan.profile.validation.deferred:
        steps = [step for step in due_steps(plan) if step <= restored.step]
        series_of(history, steps, folder / CHECKPOINTS, sound=steps,
                  hint=f"restore them from a copy, or remove {restored.folder} to resume from before it")
    return plan, Resumption(attempt, history, restored, found)


def _check_unfinished(folder: Path, history: Sequence[Event]) -> None:
    if not history[0].data.keys() >= {"settings", "placements"}:
        raise RunFolderError(f"{folder / JOURNAL}, line 1: it does not say what the run is made of",
                             hint="an older grpo-bench recorded it; start it anew with grpo-bench run")
    status = history[-1].data.get("status") if history[-1].kind == Kind.RUN_ENDED else None
    if status in FINISHED:
        raise RunFolderError(f"{folder} has ended ({status}): there is nothing to resume")
    if status == Status.TRAINED:
        raise RunFolderError(f"the training in {folder} is over: there is nothing to resume",
                             hint=f"grpo-bench eval {folder} evaluates it")
    if not leads_on(settings_of(history)):
        raise RunFolderError(f"{folder} saved no full checkpoints: it would start again under a clock that already ran",
                             hint="start a new run")


def refuse_simulated(folder: Path, history: Sequence[Event]) -> None:
    """RunFolderError where nothing was ever trained; a journal that is empty cannot tell, but the provenance can."""
    kept = folder / provenance_file(1)
    said = history[0].data if history else read_object(kept) if kept.is_file() else {}
    if said.get("modelled"):
        raise RunFolderError(f"{folder} is a simulation: nothing in it was trained, so there is nothing to go on with",
                             hint="grpo-bench run starts a run, grpo-bench simulate another simulation")


def leads_on(settings: Mapping[str, Any]) -> bool:
    """Whether a training with these settings can be gone on with once it was cut off. One whose evaluation is deferred
    is timed by its updates, so it never starts again."""
    deferred = settings.get("validation", {}).get("deferred")
    return not deferred or bool(settings.get("checkpoint", {}).get("period"))


def refused(what: str, found: Sequence[str]) -> RunFolderError:
    """The error that names differences."""
    more = (f"and {len(found) - _SHOWN} more",) if len(found) > _SHOWN else ()
    shown = "".join(f"\n    {line}" for line in (*found[:_SHOWN], *more))
    return RunFolderError(f"{what}:{shown}",
                          hint="restore what it ran with, or give --force, which the journal will say")


def provenance_file(attempt: int) -> str:
    """Where an attempt keeps what software and data it ran with."""
    return "provenance.json" if attempt == 1 else f"provenance-{attempt}.json"


def differences(settings: Mapping[str, Any], settings_now: Mapping[str, Any], software: Mapping[str, Any],
                software_now: Mapping[str, Any]) -> Iterator[str]:
    """What differs between the settings and the software of then and now, a line each."""
    yield from unequal("", settings, settings_now)
    for part in _COMPARED:
        yield from unequal(part, software.get(part), json.loads(json.dumps(software_now[part])))


def _differences(history: Sequence[Event], plan: Plan, before: Mapping[str, Any]) -> Iterator[str]:
    yield from differences(settings_of(history), plan.resolved, before, plan.provenance)
    if plan.deterministic:
        yield from unequal("placements", _sizes(history[0].data["placements"]), _sizes(plan.to_json()["placements"]))


def _sizes(placements: Mapping[str, Any]) -> dict[str, Any]:
    """What of a placement decides the order of sums."""
    return {name: {key: placement.get(key) for key in ("workers", "threads")} for name, placement in placements.items()}


def unequal(path: str, before: Any, now: Any) -> Iterator[str]:
    """Where two values differ, a line each."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from unequal(f"{path}.{key}" if path else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{path}: was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
