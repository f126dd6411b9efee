"""What the folder of a launch holds: ``launch.json``, and a folder for each replica.

A replica's folder has the scripts of its jobs, a ``launch.json`` of its own with all that was decided and the jobs'
numbers, what its jobs print, ``attempts.log`` with a line for each start and end of a job, and the run folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError

FILE = "launch.json"
ATTEMPTS = "attempts.log"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Replica:
    """One of a launch's runs. ``jobs`` are the numbers of its jobs by purpose."""

    number: int
    folder: Path
    seed: int
    jobs: Mapping[str, str]

    @property
    def run(self) -> Path | None:
        """The run's folder, once there is one."""
        return next((file.parent for file in sorted(self.folder.glob("[!.]*/profile.json"))), None)

    def outputs(self) -> list[Path]:
        """What its jobs printed, the latest job last."""
        return sorted(self.folder.glob("slurm-*.out"), key=lambda file: file.stat().st_mtime)

    def attempts(self, job: str) -> str:
        """What the script of a job noted last: ``started``, ``ended CODE`` or ``requeued``; empty before it ran."""
        try:
            lines = (self.folder / ATTEMPTS).read_text("utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return next((" ".join(words[3:]) for words in map(str.split, reversed(lines)) if words[1:2] == [job]), "")


def write(folder: Path, data: Mapping[str, Any]) -> None:
    """Keep ``data`` as the folder's launch.json, whole or not at all."""
    part = folder / f".{FILE}.{os.getpid()}"
    part.write_text(json.dumps({"schema": SCHEMA, **data}, indent=2) + "\n")
    part.replace(folder / FILE)


def read(folder: Path) -> dict[str, Any]:
    """A launch.json; InputError where there is none that can be read."""
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
    except FileNotFoundError:
        raise InputError(f"{folder} is no folder of a launch: it has no {FILE}",
                         hint="give the one that grpo-bench launch named") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / FILE} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputError(f"{folder / FILE} is not of this version", hint=f"schema should be {SCHEMA}")
    return found


def replicas(folder: Path) -> list[Replica]:
    """Those of a launch, in order."""
    return [Replica(number, folder / f"replica-{number}", found["seed"], found["jobs"])
            for number in range(read(folder)["replicas"])
            for found in [read(folder / f"replica-{number}")]]


def newest(runs: Path) -> Path:
    """The latest launch in ``runs``; InputError where there is none."""
    if found := max(_launches(runs), default=None):
        return found[1]
    raise InputError(f"no launch in {runs}", hint="name the folder of one, or where launches are with --runs")


def _launches(runs: Path) -> Iterator[tuple[float, Path]]:
    for file in runs.glob(f"*/{FILE}"):
        with suppress(InputError, OSError):
            if "replicas" in read(file.parent):
                yield file.stat().st_mtime, file.parent
