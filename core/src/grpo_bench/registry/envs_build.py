"""Building an environment from its lock.

A build is made where it stays, under the lock of its name, and counts from the moment its record is written: after pip
has done every step, everything the lock names has imported, and the plugin's inventory has answered. Whatever fails or
interrupts it before leaves a log and nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..contract import GrpoBenchError, WorkerEnv
from .envs_inventory import inventory_of
from .envs_lock import Lock, read_lock
from .envs_python import Interpreter, find_python
from .envs_store import Place, Record, Say, held, size_of

_LINES, _TAIL_BYTES = 12, 2**16
_UNSET = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""What would let this process's own packages into a build."""


def build(env: WorkerEnv, say: Say, *, force: bool = False, python: str | None = None,
          index: str | None = None) -> Place:
    """Build an environment, unless it is there already; ``force`` builds it anew. ``python`` is the interpreter to
    build it with, ``index`` a package index that pip asks besides those of its own settings."""
    lock = read_lock(env)
    base = find_python(env.name, lock.python, python)
    place = Place(f"{lock.stem}-{base.tag}")
    with held(env.name, say) as holder, _explained(env, place):
        if place.record() is not None and not force:
            say(f"environment {env.name} is built: {place.folder}")
            return place
        place.remove()
        say(f"building environment {env.name} with Python {base.version} in {place.folder}\n  output: {place.log}")
        try:
            _make(env, lock, base, place, holder, say, index)
        except BaseException:
            place.remove(keep_log=True)
            raise
    say(f"environment {env.name} is built")
    return place


def _make(env: WorkerEnv, lock: Lock, base: Interpreter, place: Place, holder: int, say: Say,
          index: str | None) -> None:
    extra = ["--extra-index-url", index] if index else []
    _run(env, place, holder, "making the virtual environment", [base.path, "-m", "venv", str(place.folder)])
    pip = [str(place.python), "-m", "pip", "--no-input", "--disable-pip-version-check", "install", *extra]
    for number, step in enumerate(lock.steps, 1):
        count = len(step.packages)
        what = f"step {number} of {len(lock.steps)}, {count} package{'s' * (count > 1)}"
        say(f"  {what}")
        _run(env, place, holder, what, [*pip, *step.options, *step.packages])
    for name, text in lock.files.items():
        (_site_packages(place) / name).write_text(text)
    if lock.imports:
        say(f"  importing {', '.join(lock.imports)}")
        code = "\n".join(f"import {name}" for name in lock.imports)
        _run(env, place, holder, "importing what it is for", [str(place.python), "-P", "-c", code])
    inventory_of(str(place.python), env, place.inventory)
    place.finish(Record(lock.digest, base.version, base.path, size_of(place.folder)))


def _site_packages(place: Place) -> Path:
    return next(place.folder.glob("lib/python3.*/site-packages"))


def _run(env: WorkerEnv, place: Place, holder: int, what: str, command: Sequence[str]) -> None:
    """Run a command to its end, its output into the log; an error has the last lines of that."""
    clean = {name: value for name, value in os.environ.items() if name not in _UNSET}
    with place.log.open("ab") as log:
        begin = log.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=clean,
                                   cwd=os.sep, pass_fds=[holder], start_new_session=True)
        try:
            code = process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if code:
        how = f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"
        raise GrpoBenchError(f"environment {env.name!r} could not be built: {what}: {Path(command[0]).name} {how}:\n  "
                             + "\n  ".join(_tail(place.log, begin)), hint=_advice(place))


def _tail(log: Path, begin: int) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
    return [line.rstrip() for line in lines if line.strip()][-_LINES:]


@contextmanager
def _explained(env: WorkerEnv, place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GrpoBenchError(f"environment {env.name!r} could not be built: {error}", hint=_advice(place)) from error


def _advice(place: Place) -> str:
    free = shutil.disk_usage(place.folder.parent).free
    return f"all of its output is in {place.log}; that disk has {free / 1e9:.1f} GB left"
