"""A run's record held against itself: what its first events say, and what its folder keeps beside its journals.

Each attempt begins with an event that says what it is made of, and with a file of software and data whose hash that
event has. A record that was changed in one place disagrees with itself in another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, RunFolderError, divided, settings_of
from ..contract.codec import to_jsonable
from ..observers.journal import EVALUATION
from ..registry import read_object
from ..registry.provenance import source_faults
from .evaluation import set_otherwise
from .folder import software_sha256
from .resume import PROFILE, SIMULATED, provenance_file, unequal

_BEGINNINGS = (Kind.RUN_STARTED, Kind.RESUMED, Kind.EVALUATION_STARTED)


def unscored_by(folder: Path, events: Sequence[Event]) -> list[str]:
    """Every reason why a run cannot count that its record knows, whether or not it draws that conclusion itself."""
    training, evaluation = divided(events)
    found = [SIMULATED] if training[0].data.get("modelled") else []
    for data in (training[0].data, *(event.data for event in evaluation[:1])):
        found += data["unscored"]
        parts = [*data["parts"].items(), *(("observer", part) for part in data.get("observers", ()))]
        found += [f"{role} {part.get('name')!r} is a stand-in" for role, part in parts if part.get("stand_in")]
        found += [f"its evaluation differs from its training: {line}" for line in data.get("forced", ())]
    for file, sha256 in _kept(folder, events):
        found += source_faults(read_object(file)) if not _file_fault(file, sha256) else []
    return list(dict.fromkeys(found))


def faults(folder: Path, events: Sequence[Event]) -> Iterator[str]:
    """Where a record disagrees with itself."""
    training, evaluation = divided(events)
    started = training[0].data
    yield from unequal("seed", started["settings"].get("seed"), started["seed"])
    try:
        profile = read_object(folder / PROFILE)
    except RunFolderError as error:
        yield error.message
    else:
        yield from (f"{PROFILE}: {line}" for line in unequal("", to_jsonable(started["settings"]), profile))
    yield from filter(None, (_file_fault(file, sha256) for file, sha256 in _kept(folder, events)))
    if evaluation:
        yield from _apart(training, evaluation)


def _apart(training: Sequence[Event], evaluation: Sequence[Event]) -> Iterator[str]:
    """What an evaluation says otherwise than its training."""
    before, now = training[0].data, evaluation[0].data
    for key in ("run", "metric", "target"):
        yield from (f"evaluation: {line}" for line in unequal(key, before[key], now[key]))
    for event in evaluation:
        if event.kind in _BEGINNINGS and "settings" in event.data and not event.data.get("forced"):
            yield from (f"evaluation: {line}" for line in set_otherwise(settings_of(training), event.data["settings"]))


def _kept(folder: Path, events: Sequence[Event]) -> Iterator[tuple[Path, Any]]:
    """The file of software and data of each attempt, and the hash that its first event has."""
    for place, journal in zip((folder, folder / EVALUATION), divided(events), strict=True):
        for event in journal:
            if event.kind in _BEGINNINGS:
                yield place / provenance_file(event.data.get("attempt", 1)), event.data.get("provenance_sha256")


def _file_fault(file: Path, sha256: Any) -> str:
    try:
        same = software_sha256(read_object(file)) == sha256
    except RunFolderError as error:
        return error.message
    return "" if same else f"{file} is not what was kept when its attempt began"
