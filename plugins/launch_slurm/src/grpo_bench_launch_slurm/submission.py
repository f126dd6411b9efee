"""Submitting a launch: its folder, the scripts in it, and the calls of sbatch, all of them or none.

Everything is written before the first call. Where one fails, the jobs that were submitted before it are cancelled, and
the message says which they were; nothing is left to run that nobody asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_bench.contract import GrpoBenchError, InputError

from . import records, slurm
from .form import Job, Purpose
from .script import render

if TYPE_CHECKING:
    from grpo_bench.registry.site_tables import Launch

TRAINING = "JOB_THAT_TRAINS"
"""What stands for the number of a job that is not submitted yet."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A launch before it happens: the jobs of each replica with its seed, and what is kept about all of them."""

    folder: Path
    replicas: tuple[tuple[int, tuple[Job, ...]], ...]
    launch: Launch
    segments: bool
    kept: Mapping[str, Any]

    def script(self, job: Job) -> str:
        return render(job, self.launch, segments=self.segments)


def call(job: Job, training: str) -> list[str]:
    """How a job is submitted; ``training`` is the number of the job whose weights it evaluates."""
    waits = [f"--dependency=afterok:{training}", "--kill-on-invalid-dep=yes"]
    return ["sbatch", "--parsable", *(waits if job.purpose is Purpose.EVALUATE else []), str(job.script)]


def folder_name(runs: Path, profile: str, now: datetime) -> Path:
    """A name for the launch that is free in ``runs``; InputError where Slurm could not write there."""
    place = runs.absolute()
    if wrong := next((sign for sign in ("%", "\\", "\n", ",", ":", '"', "'") if sign in str(place)), None):
        raise InputError(f"--runs {runs}: {wrong!r} in a path means something to Slurm or to a container",
                         hint="choose another folder")
    stem = f"{now:%Y%m%d-%H%M%S}-{profile}"
    names = (stem if number == 1 else f"{stem}.{number}" for number in range(1, 1000))
    return next(place / name for name in names if not (place / name).exists())


def submit(submission: Submission) -> list[records.Replica]:
    """Write all of it, submit all of it; the replicas with their jobs' numbers."""
    _write(submission)
    submitted: list[records.Replica] = []
    numbers: dict[str, str] = {}
    for replica, (seed, jobs) in enumerate(submission.replicas):
        numbers, calls = {}, []
        for job in jobs:
            calls.append(call(job, numbers.get(Purpose.TRAIN, "")))
            try:
                numbers[job.purpose] = slurm.submit(calls[-1])
                _keep(submission, replica, numbers, calls)
            except (GrpoBenchError, OSError) as error:
                raise _undone(_said(error), submission, replica, job, submitted, numbers) from error
        submitted.append(records.Replica(replica, jobs[0].folder, seed, numbers))
    return submitted


def _write(submission: Submission) -> None:
    try:
        submission.folder.mkdir(parents=True)
        records.write(submission.folder, {**submission.kept, "replicas": len(submission.replicas)})
        for replica, (_, jobs) in enumerate(submission.replicas):
            jobs[0].folder.mkdir()
            for job in jobs:
                job.script.write_text(submission.script(job))
                job.script.chmod(0o755)
            _keep(submission, replica, {}, [])
    except OSError as error:
        raise _said(error) from error


def _said(error: GrpoBenchError | OSError) -> GrpoBenchError:
    if isinstance(error, GrpoBenchError):
        return error
    return InputError(f"cannot write {error.filename or 'the launch'}: {error.strerror}",
                      hint="choose another place with --runs; it has to be one that all hosts share")


def _keep(submission: Submission, replica: int, numbers: Mapping[str, str], calls: Sequence[Sequence[str]]) -> None:
    seed, jobs = submission.replicas[replica]
    records.write(jobs[0].folder, {**submission.kept, "replica": replica, "seed": seed, "jobs": dict(numbers),
                                   "calls": [list(words) for words in calls]})


def _undone(error: GrpoBenchError, submission: Submission, replica: int, job: Job,
            submitted: Sequence[records.Replica], numbers: Mapping[str, str]) -> GrpoBenchError:
    """The error that says what was submitted before the failure, and what became of it."""
    before = [number for earlier in submitted for number in earlier.jobs.values()] + list(numbers.values())
    message = f"replica {replica} could not be submitted ({job.script.name}): {error.message}"
    if not before:
        shutil.rmtree(submission.folder)
        return type(error)(f"{message}; nothing was submitted", hint=error.hint)
    named = f"jobs {', '.join(before)} of replicas 0 to {replica if numbers else replica - 1}"
    try:
        slurm.cancel(before)
    except GrpoBenchError as failure:
        return type(error)(f"{message}; {named} were submitted before and are still there: {failure.message}",
                           hint=f"cancel them with: scancel {' '.join(before)}")
    return type(error)(f"{message}; {named} were submitted before and have been cancelled",
                       hint=f"what was written is in {submission.folder}")
