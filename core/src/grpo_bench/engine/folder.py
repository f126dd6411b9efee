"""The folder of a run, made whole before anything starts: its resolved profile and what software it is made of."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from ..contract import RunFolderError
from ..observers.durable import sync
from ..registry import Plan
from .resume import PROFILE, provenance_file


def make_folder(plan: Plan, runs: Path, now: datetime) -> Path:
    """``<time>-<profile>-<seed>`` with the resolved profile and the provenance in it, numbered where that exists."""
    stem = f"{now:%Y%m%d-%H%M%S}-{plan.name}-{plan.seed}"
    made: Path | None = None
    new = [folder for folder in (runs, *runs.parents) if not os.path.lexists(folder)]
    try:
        runs.mkdir(parents=True, exist_ok=True)
        made = runs / f".new-{stem}-{os.getpid()}"
        made.mkdir()
        _keep(made / PROFILE, plan.resolved)
        _keep(made / provenance_file(1), software_of(plan))
        folder = _named(made, stem)
        sync(runs)
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise RunFolderError(f"cannot write a run folder in {runs}: {error.strerror or error}",
                             hint="choose another place with --runs") from error
    return folder


def record_software(folder: Path, attempt: int, plan: Plan) -> None:
    """Before an attempt records anything of itself; RunFolderError where that cannot be."""
    file = folder / provenance_file(attempt)
    try:
        _keep(file, software_of(plan))
    except OSError as error:
        raise RunFolderError(f"cannot write {file}: {error.strerror}", hint="make room or restore access") from error


def software_of(plan: Plan) -> dict[str, Any]:
    """What an attempt is made of: the profile's name, and the provenance statement of its plan; of a simulation first
    of all where its times are from."""
    return {**({"modelled": plan.modelled} if plan.modelled else {}), "profile": plan.name, **plan.provenance}


def software_sha256(software: Mapping[str, Any]) -> str:
    """The hash of that, however its file is laid out."""
    return hashlib.sha256(json.dumps(software, sort_keys=True).encode()).hexdigest()


def _named(made: Path, stem: str) -> Path:
    """Give a finished folder the first of its names that is free, at once and whole."""
    for number in range(1, 1000):
        folder = made.with_name(stem if number == 1 else f"{stem}.{number}")
        if not folder.exists():
            try:
                return made.rename(folder)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
    raise RunFolderError(f"{made.parent} holds 999 runs of this second")


def _keep(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(dict(data), indent=2) + "\n")
    sync(file)
    sync(file.parent)
