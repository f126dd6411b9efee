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
from ..observers import read_run
from ..observers.journal import FILE as JOURNAL
from ..registry import Plan, make_plan, read_object, recorded
from .checkpoints import CheckpointStore, Restored

PROFILE = "profile.json"
CHECKPOINTS = "checkpoints"
_FINISHED = (Status.TARGET_MET, Status.TARGET_MISSED, Status.COMPLETED)
_COMPARED = ("python", "distributions", "libraries", "environments", "policy", "tasks")
"""What of the provenance has to be equal."""
_SHOWN = 8


@dataclass(frozen=True)
class Resumption:
    """A later attempt of a run: which one, the events of the earlier ones, the checkpoint it goes on from (None: from
    the start), and what differs from the attempt before."""

    attempt: int
    history: tuple[Event, ...]
    restored: Restored | None
    forced: tuple[str, ...] = ()

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
    history = tuple(read_run(folder)) if (folder / JOURNAL).exists() else ()
    if not history:
        if (folder / CHECKPOINTS).exists():
            raise RunFolderError(f"{folder} has checkpoints, but its {JOURNAL} is empty or gone",
                                 hint="restore the journal from a copy")
        return make_plan(recorded(folder / PROFILE, read_object(folder / provenance_file(1)).get("profile", ""))), None
    if not history[0].data.keys() >= {"settings", "placements"}:
        raise RunFolderError(f"{folder / JOURNAL}, line 1: it does not say what the run is made of",
                             hint="an older grpo-bench recorded it; start it anew with grpo-bench run")
    if history[-1].kind == Kind.RUN_ENDED and history[-1].data.get("status") in _FINISHED:
        raise RunFolderError(f"{folder} has ended ({history[-1].data['status']}): there is nothing to resume")
    attempt = 1 + max((event.data["attempt"] for event in history if event.kind == Kind.RESUMED), default=1)
    plan = make_plan(recorded(folder / PROFILE, history[0].data["profile"]))
    differences = tuple(_differences(history, plan, read_object(folder / provenance_file(attempt - 1))))
    if differences and not force:
        more = (f"and {len(differences) - _SHOWN} more",) if len(differences) > _SHOWN else ()
        shown = "".join(f"\n    {line}" for line in (*differences[:_SHOWN], *more))
        raise RunFolderError(f"{folder} would not be the same run any more:{shown}",
                             hint="restore what it ran with, or give --force, which the journal will say")
    restored = CheckpointStore(folder / CHECKPOINTS, plan.profile.checkpoint.keep).latest(history)
    return plan, Resumption(attempt, history, restored, differences)


def provenance_file(attempt: int) -> str:
    """Where an attempt keeps what software and data it ran with."""
    return "provenance.json" if attempt == 1 else f"provenance-{attempt}.json"


def _differences(history: Sequence[Event], plan: Plan, before: Mapping[str, Any]) -> Iterator[str]:
    yield from _unequal("", settings_of(history), plan.resolved)
    for part in _COMPARED:
        yield from _unequal(part, before.get(part), json.loads(json.dumps(plan.provenance[part])))
    if plan.deterministic:
        yield from _unequal("placements", _sizes(history[0].data["placements"]), _sizes(plan.to_json()["placements"]))


def _sizes(placements: Mapping[str, Any]) -> dict[str, Any]:
    """What of a placement decides the order of sums."""
    return {name: {key: placement.get(key) for key in ("workers", "threads")} for name, placement in placements.items()}


def _unequal(path: str, before: Any, now: Any) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            yield from _unequal(f"{path}.{key}" if path else key, before.get(key), now.get(key))
    elif before != now:
        yield f"{path}: was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
