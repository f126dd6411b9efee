"""``grpo-bench launch status|cancel|logs``: what became of a launch."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grpo_bench.cli.columns import columns, say
from grpo_bench.contract import InputError, RunFolderError
from grpo_bench.observers import Tally, read_run

from . import slurm
from .records import Replica, newest, replicas
from .slurm import JobState

LINES = 20
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
CANCEL_S = 60
"""How long a job's script may take to end its driver, then Ray, then itself."""


def up_to(most: int) -> Callable[[str], int]:
    """What reads a number of things from the command line."""
    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"should be an integer from 1 to {most}, got {text!r:.40}")
        return int(text)
    return parsed


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Give the verb its actions; without one it launches."""
    actions = parser.add_subparsers(metavar="ACTION", required=False)
    watch = actions.add_parser("status", help="jobs, runs and last lines of a launch")
    watch.set_defaults(verb=_status)
    cancel = actions.add_parser("cancel", help="cancel the jobs of a launch")
    cancel.set_defaults(verb=_cancel)
    logs = actions.add_parser("logs", help="what the jobs of a launch print")
    logs.add_argument("--follow", action="store_true", help="go on until interrupted")
    logs.add_argument("--lines", type=up_to(100_000), default=LINES, metavar="N",
                      help=f"so many of the end (default: {LINES})")
    logs.set_defaults(verb=_logs)
    for action in (watch, cancel, logs):
        action.add_argument("folder", nargs="?", type=Path, metavar="LAUNCH_FOLDER",
                            help="folder of the launch (default: the latest in --runs)")
        action.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR",
                            help="where launches are (default: runs)")
        action.add_argument("--replica", type=int, metavar="K", help="only this one")


def _chosen(arguments: argparse.Namespace) -> list[Replica]:
    folder = (arguments.folder or newest(arguments.runs)).absolute()
    found = replicas(folder)
    if arguments.replica is None:
        return found
    if not 0 <= arguments.replica < len(found):
        raise InputError(f"--replica {arguments.replica}: {folder} has replicas 0 to {len(found) - 1}")
    return [found[arguments.replica]]


def _status(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments)
    states = _states(chosen)
    rows: list[tuple[str, ...]] = [("replica", "seed", "job", "state", "time", "run")]
    for replica in chosen:
        for purpose, number in replica.jobs.items():
            state, elapsed = _state(replica, number, states)
            first = (str(replica.number), str(replica.seed)) if purpose == next(iter(replica.jobs)) else ("", "")
            rows.append((*first, f"{purpose} {number}", state, elapsed, _run(replica) if first[0] else ""))
        if not replica.jobs:
            rows.append((str(replica.number), str(replica.seed), "not submitted", "", "", ""))
    say(columns(rows))
    for replica in chosen:
        if lines := _last_lines(replica, 1 if len(chosen) > 1 else LINES):
            say("", f"replica {replica.number}: {replica.outputs()[-1]}", *(f"  {line}" for line in lines))
    return 0


def _states(chosen: Sequence[Replica]) -> Mapping[str, JobState]:
    """Nothing where Slurm cannot be asked here: the jobs' own notes are left then."""
    if shutil.which("squeue") is None:
        say("squeue is not on PATH: states are those that the jobs noted themselves")
        return {}
    return slurm.states([number for replica in chosen for number in replica.jobs.values()])


def _state(replica: Replica, number: str, states: Mapping[str, JobState]) -> tuple[str, str]:
    noted = replica.attempts(number)
    if found := states.get(number):
        detail = found.detail if found.detail and found.state not in ("RUNNING", "COMPLETED") else ""
        return f"{found.state}{f' ({detail})' if detail else ''}", found.elapsed
    return (f"gone; it noted: {noted}" if noted else "gone before it started"), ""


def _run(replica: Replica) -> str:
    """Where the run stands, by its own record."""
    run = replica.run
    if run is None:
        return "not begun"
    tally = Tally()
    try:
        for event in read_run(run):
            tally.add(event)
    except RunFolderError as error:
        return error.message
    current = tally.evaluation or tally.training
    status = current.ended["status"] if current.ended else "under way or cut off"
    value = "" if tally.value is None else f", {tally.value:.3f}"
    return f"{status}, {'evaluated to ' if tally.evaluation else ''}step {tally.steps}{value}"


def _last_lines(replica: Replica, count: int) -> list[str]:
    outputs = replica.outputs()
    if not outputs:
        return []
    with outputs[-1].open("rb") as file:
        file.seek(max(0, outputs[-1].stat().st_size - count * 1000))
        return file.read().decode("utf-8", "replace").splitlines()[-count:]


def _cancel(arguments: argparse.Namespace) -> int:
    chosen = _chosen(arguments)
    numbers = [number for replica in chosen for number in replica.jobs.values()]
    states = slurm.states(numbers)
    going = {number: states[number].state for number in numbers
             if number in states and not states[number].state.startswith(OVER)}
    if not going:
        print("none of its jobs is waiting or running")
        return 0
    running = [number for number, state in going.items() if state == "RUNNING"]
    if waiting := [number for number in going if number not in running]:
        slurm.cancel(waiting)
    for number in running:
        with suppress(slurm.SlurmError):  # it may have ended by now; what has not is seen below
            slurm.tell_script(number, "USR2")
    if left := asyncio.run(_still_running(running)):
        print(f"not ended in {CANCEL_S} s, so cancelled by force: {', '.join(left)}")
        slurm.cancel(left)
    print(f"cancelled: {', '.join(going)}")
    return 0


async def _still_running(numbers: Sequence[str]) -> list[str]:
    """Those that did not end by themselves in time."""
    left = list(numbers)
    for _ in range(CANCEL_S):
        states = slurm.states(left)
        left = [number for number in left if number in states and states[number].state == "RUNNING"]
        if not left:
            break
        await asyncio.sleep(1)
    return left


def _logs(arguments: argparse.Namespace) -> int:
    files = [str(replica.outputs()[-1]) for replica in _chosen(arguments) if replica.outputs()]
    if not files:
        raise InputError("no job has printed anything yet", hint="grpo-bench launch status says whether they run")
    follow = ["--follow=name", "--retry"] if arguments.follow else []
    os.execvp("tail", ["tail", f"--lines={arguments.lines}", *follow, "--", *files])
