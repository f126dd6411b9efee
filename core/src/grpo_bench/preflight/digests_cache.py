"""Where hashes of files are kept: ``grpo-bench/digests.json`` in the user's cache.

An entry belongs to a real path and holds size and time of change that the file had, with the hash by each algorithm so
far. It counts for as long as both are the same. A file that changed a moment ago gets no entry: it could change again
without its time showing. Processes that write at once take turns, and each adds to what is there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..contract import GrpoBenchError
from ..registry.envs_store import cache, read_json, write_json

MAX_ENTRIES = 50_000
"""Files whose hashes are kept; those that were added first go first."""
SETTLED_S = 2.0
"""Seconds since its last change after which a file's time of change tells of the next one: the coarsest file systems
count time in steps of two seconds."""


class Stamp(NamedTuple):
    """What tells that a file is still the same."""

    path: str
    size: int
    mtime_ns: int

    @property
    def settled(self) -> bool:
        return datetime.now(UTC).timestamp() - self.mtime_ns / 1e9 > SETTLED_S


def default_file() -> Path:
    return cache() / "digests.json"


class DigestCache:
    """One process's view of the file: read once, added to, merged into what others have written meanwhile."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, Any] = read_json(file)
        self._new: dict[str, dict[str, Any]] = {}

    def find(self, stamp: Stamp, algorithm: str) -> str | None:
        digest = _current(self._known.get(stamp.path), stamp).get(algorithm)
        return digest if isinstance(digest, str) else None

    def add(self, stamp: Stamp, algorithm: str, digest: str) -> None:
        if stamp.settled:
            entry = {**_current(self._known.get(stamp.path), stamp), "size": stamp.size, "mtime_ns": stamp.mtime_ns,
                     algorithm: digest}
            self._known[stamp.path] = self._new[stamp.path] = entry

    def save(self) -> None:
        """Write what is new."""
        if not self._new:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with _turn(self._file.with_suffix(".lock")):
                there = read_json(self._file)
                for path, entry in self._new.items():
                    stamp = Stamp(path, entry["size"], entry["mtime_ns"])
                    there[path] = {**_current(there.pop(path, None), stamp), **entry}
                write_json(self._file, dict(list(there.items())[-MAX_ENTRIES:]))
        except OSError as error:
            raise GrpoBenchError(f"cannot write {error.filename or self._file}: {error.strerror}",
                                 hint="XDG_CACHE_HOME names another folder for caches, --no-cache does "
                                      "without") from error
        self._new = {}


def _current(entry: object, stamp: Stamp) -> Mapping[str, Any]:
    """An entry, where it is about the file as it is now."""
    if isinstance(entry, dict) and (entry.get("size"), entry.get("mtime_ns")) == (stamp.size, stamp.mtime_ns):
        return entry
    return {}


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
