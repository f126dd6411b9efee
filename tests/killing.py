"""Runs that are cut off at chosen points, each in a forked process, and what resumptions make of them. A run whose
evaluation is deferred is evaluated in the same process, or in that of a later attempt.

As a script, ``killing.py FOLDER`` answers each line of JSON on stdin, a case, with one on stdout. All cases are forked
from one process that has imported everything, so that one costs a fraction of a second. Where a case cuts off:

``cpu``    after a number of CPU seconds, by a signal that no Python code sees
``touch``  at the n-th time that anything touches the run's folder; a write to the journal is cut in two
``power``  likewise, and then whatever was not fsynced is gone
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from grpo_bench.contract import Kind, Status, timeless
from grpo_bench.engine import (
    Evaluation, alone, conduct, conduct_evaluation, make_folder, prepare, prepare_evaluation,
)
from grpo_bench.engine.clock import run_real
from grpo_bench.observers import read_run
from grpo_bench.registry import make_plan, resolve

_TOUCHES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir"}


class PowerLoss:
    """What is durable under ``root``: all there is now, then the bytes of files and the names in folders by fsync."""

    def __init__(self, root: Path) -> None:
        self._root = os.stat(root).st_ino
        self._files: dict[int, bytes] = {}
        self._folders: dict[int, dict[str, tuple[int, bool]]] = {}
        self._held: list[int] = []
        for path in (root, *root.rglob("*")):
            self.note(os.open(path, os.O_RDONLY))

    def note(self, descriptor: int) -> None:
        """The state of what ``descriptor`` is open on is durable now. Its inode is held, lest another file get it, and
        no lock with it."""
        self._held.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
        inode, path = os.fstat(descriptor).st_ino, Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            self._folders[inode] = {entry.name: (entry.inode(), entry.is_dir()) for entry in os.scandir(path)}
        else:
            self._files[inode] = path.read_bytes()

    def write(self, into: Path, inode: int | None = None) -> None:
        """Lay out what is left. A file or folder whose name is durable but whose content is not is empty."""
        into.mkdir()
        for name, (inner, is_folder) in self._folders.get(self._root if inode is None else inode, {}).items():
            if is_folder:
                self.write(into / name, inner)
            else:
                (into / name).write_bytes(self._files.get(inner, b""))


class Cut:
    """Ends this process at the ``at``-th touch of a file under ``runs``."""

    def __init__(self, runs: Path, at: int, power: PowerLoss | None) -> None:
        self._runs, self._at, self._power = str(runs), at, power
        self._phase = "startup"
        self.touched: list[str] = []
        """The phase of each touch so far."""
        sys.addaudithook(self._audited)
        self._fsync, self._pwrite = os.fsync, os.pwrite
        os.fsync, os.pwrite = self._synced, self._written

    def _touch(self) -> bool:
        self.touched.append(self._phase)
        return len(self.touched) == self._at

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        where = str(arguments[0]) if event in _TOUCHES else ""
        if where.startswith(self._runs) and self._touch():
            self._end()

    def _synced(self, descriptor: int) -> None:
        if self._touch():
            self._end()
        self._fsync(descriptor)
        if self._power is not None:
            self._power.note(descriptor)

    def _written(self, descriptor: int, data: bytes, offset: int) -> int:
        if self._touch():
            self._pwrite(descriptor, data[:len(data) // 2], offset)
            self._end()
        if b'"kind":"phase"' in data:
            self._phase = json.loads(data)["data"]["phase"]
        return self._pwrite(descriptor, data, offset)

    def _end(self) -> NoReturn:
        self._at = -1
        if self._power is not None:
            self._power.write(Path(f"{self._runs}.left"))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def attempt(runs: Path, overrides: list[str], how: str, at: float) -> int:
    """One attempt in a forked process: the signal that ended it, or 0. ``at`` says where it is cut off."""
    child = os.fork()
    if not child:
        code = 1
        try:
            output = os.open(runs.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            _run(runs, overrides, how, at)
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    left = Path(f"{runs}.left")
    if left.exists():
        runs.rename(runs.parent / f"lost-{at}")
        left.rename(runs)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError((runs.parent / "output").read_text())
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def _run(runs: Path, overrides: list[str], how: str, at: float) -> None:
    began = time.process_time()
    if how == "cpu":
        signal.setitimer(signal.ITIMER_PROF, at)
    cut = Cut(runs, sys.maxsize if how == "cpu" else int(at), PowerLoss(runs) if how == "power" else None)
    found = [folder for folder in runs.iterdir() if not folder.name.startswith(".")]
    status = _status(found[0]) if found else None
    if status != Status.TRAINED:
        if found:
            folder, (plan, resumption) = found[0], prepare(found[0])
        else:
            plan, resumption = make_plan(resolve("mock", overrides=overrides, cwd=runs)), None
            folder = make_folder(plan, runs, datetime.now(UTC))
            found = [folder]
        outcome = run_real(lambda clock: conduct(plan, folder, clock, resumption=resumption))
        if outcome.error is not None:
            raise outcome.error
        status = outcome.status
    if status == Status.TRAINED:
        _evaluate(found[0])
    signal.setitimer(signal.ITIMER_PROF, 0)
    (runs.parent / "touched").write_text(json.dumps(cut.touched))
    (runs.parent / "cpu_s").write_text(str(time.process_time() - began))


def _evaluate(folder: Path) -> None:
    with alone(folder):
        found = prepare_evaluation(folder)
        assert isinstance(found, Evaluation)
        outcome = run_real(lambda clock: conduct_evaluation(found, clock))
    if outcome.error is not None:
        raise outcome.error


def _status(folder: Path) -> str | None:
    """How a run's training ended, where it did."""
    ends = [event.data["status"] for event in _events(folder.parent) if event.kind == Kind.RUN_ENDED]
    return ends[0] if ends else None


def work(folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Cut a run off at each of the case's points, then let it end: what it was busy with each time, and its history.
    One that was cut off after its last event has ended."""
    folder.mkdir(parents=True)
    runs = folder / "runs"
    runs.mkdir()
    signals, phases, events = [], [], []
    for at in [*case["at"], sys.maxsize]:
        signals.append(attempt(runs, case["overrides"], "touch" if at == sys.maxsize else case["how"], at))
        events = _events(runs)
        phases.append(next((event.data["phase"] for event in reversed(events) if event.kind == Kind.PHASE), None))
        if events and events[-1].kind == Kind.RUN_ENDED and events[-1].data["status"] != Status.TRAINED:
            break
    resumed = [event.data["from_step"] for event in events if event.kind == Kind.RESUMED]
    return {"signals": signals, "phases": phases, "resumed": resumed, "history": timeless(events),
            "rollouts": {file.name: sorted(json.loads(line)["rollout_id"] for line in file.read_text().splitlines())
                         for file in sorted(runs.glob("*/trajectories/*.jsonl"))},
            "cpu_s": float(spent.read_text()) if (spent := folder / "cpu_s").exists() else 0.0,
            "touched": json.loads(touched.read_text()) if (touched := folder / "touched").exists() else []}


def _events(runs: Path) -> list[Any]:
    journals = [journal for journal in runs.glob("*/events.jsonl") if not journal.parent.name.startswith(".")]
    return list(read_run(journals[0].parent)) if journals else []


def main(folder: Path) -> None:
    build: Any = importlib.import_module("grpo_bench.registry.build")
    lock = functools.cache(build.distribution_lock)
    build.distribution_lock = lambda names: lock(tuple(names))
    make_plan(resolve("mock"))
    for number, line in enumerate(sys.stdin):
        print(json.dumps(work(folder / str(number), json.loads(line))), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
