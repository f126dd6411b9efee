"""Slurm's commands: what they are asked and what they answer.

Each call has a deadline, and says in one message what went wrong. Variables of whoever submits that would change what a
script says (``SBATCH_*``), or that belong to a job which this one is submitted from (``SLURM_*``), are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_bench.contract import GrpoBenchError, InputError

DEADLINE_S = 120
SEGMENTS_SINCE = (23, 11)
"""The first version whose sbatch has --segment."""
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")


class SlurmError(GrpoBenchError):
    """A command of Slurm failed or did not answer."""


@dataclass(frozen=True, slots=True)
class JobState:
    """What the cluster says of a job: its state in Slurm's words, how long it runs or ran, why it waits or how it
    ended, and where that is from."""

    state: str
    elapsed: str
    detail: str
    source: str


def command(words: Sequence[str]) -> str:
    """Its standard output; InputError where there is no such command here, SlurmError where it fails."""
    if shutil.which(words[0]) is None:
        raise InputError(f"{words[0]} is not on PATH", hint="launch works where Slurm's commands are: on a login node")
    kept = {name: value for name, value in os.environ.items()
            if name in _KEPT or not name.startswith(("SBATCH_", "SLURM_"))}
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=DEADLINE_S, env=kept, check=False)
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{shlex.join(words)} did not answer in {DEADLINE_S} s",
                         hint="see whether the cluster's controller is up") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise SlurmError(f"{shlex.join(words)} failed: {said}")
    return done.stdout


def version() -> tuple[int, ...]:
    """Slurm's, as in (23, 11, 4)."""
    said = command(["sbatch", "--version"])
    found = re.search(r"\d+(?:\.\d+)+", said)
    if found is None:
        raise SlurmError(f"sbatch --version says no version: {said.strip():.100}")
    return tuple(map(int, found[0].split(".")))


def submit(call: Sequence[str]) -> str:
    """Submit a job by ``sbatch --parsable ...``; its number."""
    lines = command(call).split()
    number = lines[-1].partition(";")[0] if lines else ""
    if not number.isdigit():
        raise SlurmError(f"{shlex.join(call)} names no job: {' '.join(lines):.200}")
    return number


def cancel(numbers: Sequence[str]) -> None:
    command(["scancel", *numbers])


def tell_script(number: str, signal: str) -> None:
    """Send the script of a job a signal, and none of the steps that it started."""
    command(["scancel", "--batch", f"--signal={signal}", number])


def states(numbers: Sequence[str]) -> dict[str, JobState]:
    """What the queue says of these jobs, and the accounts of those that have left it; nothing of others."""
    if not numbers:
        return {}
    found = _queued(numbers)
    if gone := [number for number in numbers if number not in found]:
        found |= _accounted(gone)
    return found


def _queued(numbers: Sequence[str]) -> dict[str, JobState]:
    try:
        said = command(["squeue", "--noheader", "--states=all", f"--jobs={','.join(numbers)}", "--format=%i|%T|%M|%r"])
    except SlurmError as error:
        if "Invalid job id" in error.message:
            return {}
        raise
    rows = (line.split("|", 3) for line in said.splitlines() if line.count("|") >= 3)
    return {number: JobState(state, elapsed, "" if reason == "None" else reason, "squeue")
            for number, state, elapsed, reason in rows}


def _accounted(numbers: Sequence[str]) -> dict[str, JobState]:
    """Clusters without a database of accounts say nothing."""
    try:
        said = command(["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={','.join(numbers)}",
                        "--format=JobIDRaw,State,Elapsed,ExitCode"])
    except GrpoBenchError:
        return {}
    rows = (line.split("|", 3) for line in said.splitlines() if line.count("|") == 3)
    return {number: JobState(state.partition(" ")[0], elapsed, f"exit code {code.partition(':')[0]}", "sacct")
            for number, state, elapsed, code in rows}
