"""Images of tasks, made many at a time and over several attempts.

Three ways lead to an image: ``docker`` pulls the one that a row names and ``folder`` packs an image folder of ``tasks
build``, both into a SIF by Apptainer; ``sif`` unpacks a SIF into a root filesystem that bubblewrap can use without
mounting anything. An image is made under a hidden name and renamed when it is whole, so what has its name is finished.
``images.json`` in the output folder says, for each task, what its image was made of and its hash, or why it failed; the
next attempt takes up what is there and as it was, and makes the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from grpo_bench.contract import InputError
from grpo_bench_sandbox.sif import SifError, squashfs_of

STATE, LOGS, LOCK, PART = "images.json", "logs", ".lock", ".part"


class ImageError(Exception):
    """One image cannot be made; the others can."""


@dataclass(frozen=True)
class Job:
    """One image. ``make`` gets the path to make it at and a function that runs a program with its output in the
    job's log; ``source`` says what it is made of and is compared at the next attempt."""

    instance_id: str
    source: str
    target: Path
    make: Callable[[Path, Run], None]


@dataclass(frozen=True)
class Done:
    """How an image came out. ``size`` and ``sha256`` are those of a SIF; 0 and empty for a folder."""

    state: Literal["made", "failed"]
    source: str
    size: int = 0
    sha256: str = ""
    reason: str = ""


Run = Callable[[list[str]], None]


class Builder:
    """Makes images in ``out``, ``jobs`` at a time, each within ``timeout_s``."""

    def __init__(self, out: Path, *, jobs: int, timeout_s: float) -> None:
        self._out, self._jobs, self._timeout_s = out, jobs, timeout_s
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = threading.Event()

    def build(self, jobs: Iterable[Job]) -> Iterator[tuple[str, Done, bool]]:
        """Task, how its image came out, and whether it was there already, as they come."""
        jobs = list(jobs)
        self._out.mkdir(parents=True, exist_ok=True)
        with _locked(self._out), ThreadPoolExecutor(self._jobs) as pool:
            known = read_state(self._out)
            todo = []
            for job in jobs:
                done = known.get(job.instance_id)
                if done is not None and done.source == job.source and as_it_was(job.target, done):
                    yield job.instance_id, done, True
                else:
                    todo.append(job)
            futures = {pool.submit(self._one, job): job for job in todo}
            try:
                for future in as_completed(futures):
                    name, done = futures[future].instance_id, future.result()
                    known[name] = done
                    _write_state(self._out, known)
                    yield name, done, False
            finally:
                self._stop()
                pool.shutdown(wait=True, cancel_futures=True)

    def _one(self, job: Job) -> Done:
        part = job.target.with_name(f".{job.target.name}{PART}")
        (self._out / LOGS).mkdir(exist_ok=True)
        log = self._out / LOGS / f"{job.instance_id}.log"
        try:
            remove(part)
            with log.open("wb") as into:
                job.make(part, lambda argv: self._run(argv, into))
            size, digest = (part.stat().st_size, sha256_of(part)) if part.is_file() else (0, "")
            if part.is_file():
                squashfs_of(part)
            remove(job.target)
            part.rename(job.target)
            return Done("made", job.source, size, digest)
        except (ImageError, SifError, OSError) as error:
            with log.open("a") as output:
                output.write(f"{error}\n")
            return Done("failed", job.source, reason=f"{error} (see {log})")
        finally:
            remove(part)

    def _run(self, argv: list[str], log: BinaryIO) -> None:
        if self._stopping.is_set():
            raise ImageError("stopped")
        environment = {"APPTAINER_TMPDIR": str(self._out.resolve()), **os.environ}
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                              start_new_session=True) as process:
            self._running.add(process)
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                raise ImageError(f"{argv[0]} took longer than {self._timeout_s:g} s") from None
            finally:
                self._running.discard(process)
        if code:
            raise ImageError(f"{Path(argv[0]).name} ended with {code}")

    def _stop(self) -> None:
        self._stopping.set()
        for process in tuple(self._running):
            _kill(process)


def read_state(out: Path) -> dict[str, Done]:
    """What earlier attempts left in a folder."""
    try:
        data = json.loads((out / STATE).read_text())
        return {name: Done(**done) for name, done in data["images"].items()}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{out / STATE} cannot be read: {error}", hint="delete it to make all images again") from None


def as_it_was(target: Path, done: Done) -> bool:
    """Whether an image is there and looks as when it was made; contents are not read."""
    if done.state != "made":
        return False
    if not done.sha256:
        return target.is_dir()
    try:
        return target.stat().st_size == done.size and squashfs_of(target).size > 0
    except (OSError, SifError):
        return False


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_state(out: Path, images: Mapping[str, Done]) -> None:
    part = out / f".{STATE}{PART}"
    text = json.dumps({"schema": 1, "images": {name: asdict(images[name]) for name in sorted(images)}}, indent=1)
    part.write_text(text + "\n")
    part.replace(out / STATE)


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    with (out / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"another process makes images in {out}", hint="wait for it") from None
        yield


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def remove(path: Path) -> None:
    """A file, link or folder; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
