"""Where built environments are: ``grpo-bench/envs`` in the user's cache, or the folder that ``$GRPO_BENCH_ENVS`` names,
as an image does for those that it brings. A few entries to each build:

    NAME-LOCKHASH-cpXY/                 the virtual environment
    NAME-LOCKHASH-cpXY.json             its record, written last: without one it is not built
    NAME-LOCKHASH-cpXY.inventory.json   what the plugin's inventory said of it
    NAME-LOCKHASH-cpXY.log              what pip said
    NAME.held                           whoever builds or removes builds of this name holds its lock

A virtual environment holds its own path in many places, so it is made where it stays. The lock is the kernel's, on an
open file that pip inherits: when a builder is killed, the next one waits for what is still writing.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..contract import GrpoBenchError

Say = Callable[[str], None]
STORE = "GRPO_BENCH_ENVS"
"""Environment variable that names the folder of builds."""
_BUILD = re.compile(r"[a-z0-9][a-z0-9_-]*-[0-9a-f]{12}-cp\d+")


@dataclass(frozen=True)
class Record:
    """What was built: the whole hash of the lock, the version and path of the interpreter beneath, bytes on disk."""

    lock: str
    python: str
    base: str
    size: int


@dataclass(frozen=True)
class Place:
    """Where one build is, or would be; ``key`` is the name of its folder."""

    key: str

    @property
    def folder(self) -> Path:
        return store() / self.key

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def log(self) -> Path:
        return self._beside("log")

    @property
    def inventory(self) -> Path:
        return self._beside("inventory.json")

    @property
    def stem(self) -> str:
        """Name and lock, without the version of Python."""
        return self.key.rpartition("-")[0]

    @property
    def name(self) -> str:
        return self.stem.rpartition("-")[0]

    def record(self) -> Record | None:
        """The record of a finished build; None where there is none, or the interpreter beneath it is gone."""
        found = read_json(self._beside("json"))
        try:
            return Record(**found) if os.access(self.python, os.X_OK) else None
        except TypeError:
            return None

    def finish(self, record: Record) -> None:
        write_json(self._beside("json"), asdict(record))

    def remove(self, *, keep_log: bool = False) -> None:
        """Remove the build; it does not count as one from the first moment on."""
        self._beside("json").unlink(missing_ok=True)
        self.inventory.unlink(missing_ok=True)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        if not keep_log:
            self.log.unlink(missing_ok=True)

    def _beside(self, ending: str) -> Path:
        return self.folder.with_name(f"{self.key}.{ending}")


def cache() -> Path:
    """The folder of this project in the user's cache."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "grpo-bench")


def store() -> Path:
    """The folder of builds."""
    given = os.environ.get(STORE, "")
    return Path(given) if os.path.isabs(given) else cache() / "envs"


def places() -> list[Place]:
    """Every build, finished or not, of every lock."""
    with suppress(FileNotFoundError, NotADirectoryError):
        names = {name.removesuffix(".json") for name in os.listdir(store())}
        return [Place(name) for name in sorted(names) if _BUILD.fullmatch(name)]
    return []


@contextmanager
def held(name: str, say: Say) -> Iterator[int]:
    """Hold the lock of all builds of a name, with a word where that takes waiting. The descriptor of the lock is for
    child processes to inherit."""
    path = store() / f"{name}.held"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise GrpoBenchError(f"cannot write {path}: {error.strerror}",
                             hint=f"XDG_CACHE_HOME or {STORE} names another folder") from error
    try:
        if not _taken(lock, path, fcntl.LOCK_EX | fcntl.LOCK_NB):
            say(f"waiting for another process that is building {name}")
            _taken(lock, path, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def busy(name: str) -> bool:
    """Whether somebody is building or removing builds of this name."""
    path = store() / f"{name}.held"
    try:
        with path.open() as file:
            return not _taken(file.fileno(), path, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False


def _taken(lock: int, path: Path, how: int) -> bool:
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return False
    except OSError as error:
        raise GrpoBenchError(f"cannot lock {path}: {error.strerror}",
                             hint=f"name a folder on a disk that knows locks with XDG_CACHE_HOME or {STORE}") from error
    return True


def size_of(folder: Path) -> int:
    """Bytes on disk of everything in a folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def read_json(path: Path) -> dict[str, Any]:
    """An object in a file; empty where it is missing or cannot be read as one."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: Any) -> None:
    """Write a file that is there as a whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(value, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise
