"""What a run needs of the machine whatever its parts are: disk, limits, ports, clocks, variables.

Two facts of a part are acted on here: ``environment`` maps variables to the values they must have before anything
starts, ``ports`` lists those that something will listen on. What only the machine in front of us can say is said of it
alone; of other nodes it is unknown.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..contract import Finding, Role
from ..registry import Plan
from . import disk

BASE_FILES = 256
FILES_PER_ROLLOUT = {"program": 12, "in_process": 2}
"""Open files of one rollout in its worker's process, by the agent's form: sockets, and the pipes of its sandbox."""


def findings(plan: Plan, facts: Mapping[str, Any], runs: Path) -> Iterator[Finding]:
    yield from _run_folder(runs)
    yield from disk.findings(plan, facts, runs)
    yield _open_files(plan)
    yield from _ports(facts)
    yield _clocks(plan)
    yield from _environment(facts)
    yield from _given(plan)


def _run_folder(runs: Path) -> Iterator[Finding]:
    """Written and locked for real, in the nearest folder that is there."""
    folder, why = disk.existing(runs), "a run keeps its record there, and holds a lock on it"
    fix = "name another folder with --runs"
    if not folder.is_dir():
        yield Finding("run folder", False, f"{folder} is no folder", why=why, fix=fix)
        return
    try:
        with tempfile.TemporaryFile(prefix=".preflight-", dir=folder) as file:
            file.write(b"preflight")
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        yield Finding("run folder", False, f"{folder} cannot be written and locked: {error.strerror}", why=why, fix=fix)
    else:
        yield Finding("run folder", True, f"{folder} can be written and locked")


def _open_files(plan: Plan) -> Finding:
    agent, limits = plan.parts[Role.AGENT].descriptor, plan.profile.limits
    need = BASE_FILES + limits.concurrency * FILES_PER_ROLLOUT.get(agent.capabilities.form, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= need
    room = hard == resource.RLIM_INFINITY or hard >= need
    return Finding(
        "open files", enough, f"a process may open {soft:,} files; {limits.concurrency} rollouts at once take about "
                              f"{need:,}", key="limits.concurrency",
        why="a worker that may open no more files fails its rollouts",
        fix=f"ulimit -n {need}" if room else f"have the hard limit of {hard:,} raised, or lower limits.concurrency")


def _ports(facts: Mapping[str, Any]) -> Iterator[Finding]:
    wanted = {port: role for role, said in facts.items() for port in said.get("ports", ())}
    taken = [(port, role, why) for port, role in wanted.items() if (why := _obstacle(port))]
    for port, role, why in taken:
        yield Finding(f"port {port}", False, f"the {role} listens on it, and it is {why}",
                      why="who listens second does not start", fix=f"ss -ltnp 'sport = :{port}' says who does")
    if wanted and not taken:
        yield Finding("ports", True, f"{', '.join(map(str, sorted(wanted)))} free")


def _obstacle(port: int) -> str:
    """Why nobody can listen on a port now; empty where one can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return "taken" if error.errno == errno.EADDRINUSE else f"not to be had: {error.strerror}"
    return ""


def _clocks(plan: Plan) -> Finding:
    nodes = {node for placement in plan.placements.values() for node in placement.nodes}
    count = max(len(nodes), _number("SLURM_JOB_NUM_NODES"), 1)
    if count == 1:
        return Finding("clocks", True, "one machine, one clock")
    return Finding("clocks", False, f"those of {count} nodes cannot be compared from here", unknown=True,
                   why="time-outs and the order of events across nodes rest on them",
                   fix="on each node: chronyc tracking, or timedatectl")


def _environment(facts: Mapping[str, Any]) -> Iterator[Finding]:
    wanted = {name: (str(value), role) for role, said in facts.items()
              for name, value in said.get("environment", {}).items()}
    for name, (value, role) in sorted(wanted.items()):
        found = os.environ.get(name)
        yield Finding(f"variable {name}", found == value,
                      f"is {value}" if found == value else f"is {'not set' if found is None else found}, and the "
                                                           f"{role} wants {value}",
                      why="libraries read it once, when they start", fix=f"export {name}={value}")


def _given(plan: Plan) -> Iterator[Finding]:
    """What the hardware gives workers to start with, whatever is set here."""
    given = {f"{name} = {value}": None for placement in plan.placements.values()
             for name, value in placement.env.items()}
    if given:
        yield Finding("variables", True, f"workers start with {', '.join(given)}")


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
