"""``grpo-bench`` as a process of its own: started, looked into while it runs, ended, and what is left of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Kind
from grpo_bench.fabric._proc import Process, family, table
from grpo_bench.observers import read_events

PATIENCE_S = 60.0
STARTED: list[Child] = []
"""Those of the test that runs, which takes none along when it fails."""


class Child:
    """``grpo-bench run`` as a process, or another ``verb``. ``temporary`` takes the place of /tmp, ``site`` is a folder
    of modules that it sees as well."""

    def __init__(self, folder: Path, settings: Mapping[str, object], profile: str, *, runs: Path | None = None,
                 verb: tuple[str, ...] = (), json_output: bool = True, temporary: Path | None = None,
                 site: Path | None = None) -> None:
        self.runs, self.temporary = runs or folder / "runs", temporary or folder / "t"
        self.temporary.mkdir(exist_ok=True)
        self._before = self.events()
        env = {**os.environ, "TMPDIR": str(self.temporary), "XDG_CONFIG_HOME": str(folder), "OMP_NUM_THREADS": "1",
               **({} if site is None else {"PYTHONPATH": str(site)})}
        env.pop("MKL_CBWR", None)  # a run's hardware sees to it
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        arguments = verb or ("run", "--profile", profile, "--runs", str(self.runs), *sets)
        self.started = time.monotonic()  # noqa: TID251 (the parent's own clock)
        command = [sys.executable, "-m", "grpo_bench", *arguments, *(["--json"] if json_output else [])]
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        STARTED.append(self)

    def end(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=300)
        self.wall_s = time.monotonic() - self.started  # noqa: TID251
        return self.process.returncode, out, err

    def until(self, condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
        """Wait while the run goes on and ``condition`` does not hold; a run that ends before is a failure."""
        for _ in range(int(patience_s / 0.005)):
            assert self.process.poll() is None, self.process.communicate()
            if condition():
                return
            pause(0.005)
        raise AssertionError("nothing happened")

    @property
    def folder(self) -> Path:
        (found,) = self.runs.iterdir()
        return found

    def events(self) -> int:
        files = list(self.runs.glob("*/events.jsonl"))
        return files[0].read_bytes().count(b"\n") if files else 0

    def recorded(self) -> list[Event]:
        """The events so far of this process, not those of one that it resumes."""
        return list(read_events(self.folder))[self._before:] if self.events() > self._before else []

    def workers(self) -> dict[str, Process]:
        """The worker processes by the name of their socket, which counts them in the order of their start."""
        found = family(self.process.pid, table())
        lines = ((words(item.pid), item) for item in found)
        return {line[-3].rpartition("/")[2]: item for line, item in lines if "grpo_bench.fabric.worker" in line}

    def scratch(self) -> list[Path]:
        """Temporary folders that the run holds."""
        held = [os.readlink(link) for link in Path(f"/proc/{self.process.pid}/fd").iterdir() if link.is_symlink()]
        return [Path(path) for path in held if "grpo-bench-scratch" in path]


def stepped(child: Child) -> bool:
    """Whether a step is over."""
    return any(event.kind == Kind.STEP for event in child.recorded())


def pause(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 (another process is waited for)


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def left_of(processes: list[Process], folders: list[Path]) -> list[Process | Path]:
    now = table()
    alive = [item for item in processes if (found := now.get(item.pid)) and found.started == item.started
             and state(item.pid) != "Z"]
    return [*alive, *(folder for folder in folders if folder.exists())]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def assert_gone(processes: list[Process], folders: list[Path]) -> None:
    for _ in range(int(PATIENCE_S / 0.02)):
        if not left_of(processes, folders):
            return
        pause(0.02)
    raise AssertionError(f"left: {left_of(processes, folders)}")


def last_object(out: str) -> dict[str, Any]:
    """What ``--json`` ends stdout with; nothing where the process was killed or never had a run folder."""
    return json.loads(out.splitlines()[-1]) if out else {}
