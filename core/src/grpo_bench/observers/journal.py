"""The run's only truth on disk: ``events.jsonl``, one event a line, append-only.

A line counts once its newline is written. Every event reaches the operating system before the next thing happens;
steps, validations, checkpoints, resumptions and ends also reach the disk. A writer that dies leaves at most one torn
line, the last: readers pass over it, and opening the journal again cuts it off. Any other damage is an error that names
the line. A lock on the file tells other processes that the run is going on. A deferred evaluation has a journal of its
own in the folder ``eval``; it begins with the hash of the training's, which is not written again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..contract import Event, GrpoBenchError, Kind, RunFolderError
from ..contract.codec import from_jsonable, to_jsonable
from .durable import sync

FILE = "events.jsonl"
EVALUATION = "eval"
"""The folder in a run's that holds the journal of its deferred evaluation."""
_DURABLE = frozenset({Kind.RUN_STARTED, Kind.STEP, Kind.VALIDATION, Kind.CHECKPOINT, Kind.RESUMED,
                      Kind.EVALUATION_STARTED, Kind.ERROR, Kind.RUN_ENDED})
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_KEYS = {"seq", "at", "elapsed_s", "kind", "step", "data"}


class Journal:
    """Appends events. ``next_seq`` is the number the next event has to carry.

    The first event that cannot be written raises and ends the record: later ones are passed over, so that what is on
    disk stays a gapless beginning from which the run can be resumed.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._ended = False
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RunFolderError(f"cannot open {self.path}: {error.strerror}",
                                 hint="the run folder must exist and be writable") from error
        try:
            lock(self._fd, self.path)
            self._size, self.next_seq = _whole_lines(self._fd)
            os.ftruncate(self._fd, self._size)
            sync(folder)
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, event: Event) -> None:
        """Append one event; GrpoBenchError where the disk refuses it."""
        if self._ended:
            return
        if event.seq != self.next_seq:
            raise ValueError(f"event {event.seq} follows event {self.next_seq - 1}")
        line = encode(event).encode()
        try:
            self._append(line)
            if event.kind in _DURABLE:
                self._to_disk()
        except OSError as error:
            self._stop(error)
        self._size += len(line)
        self.next_seq += 1

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        if self._ended:
            return
        try:
            self._to_disk()
        except OSError as error:
            self._stop(error)

    def close(self) -> None:
        """Sync and close; closing twice is fine."""
        if self._fd < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._fd)
            self._fd, self._ended = -1, True

    def _to_disk(self) -> None:
        os.fsync(self._fd)
        if not os.fstat(self._fd).st_nlink:
            raise FileNotFoundError(errno.ENOENT, "it was removed while the run went on")

    def _append(self, line: bytes) -> None:
        done = 0
        while done < len(line):
            done += os.pwrite(self._fd, line[done:], self._size + done)

    def _stop(self, error: OSError) -> None:
        self._ended = True
        try:
            os.ftruncate(self._fd, self._size)
        except OSError:
            pass
        raise GrpoBenchError(f"cannot write {self.path}: {error.strerror}",
                             hint="make room or restore access; what was recorded stays") from error


def encode(event: Event) -> str:
    """One line of the journal."""
    record = {"seq": event.seq, "at": event.at, "elapsed_s": event.elapsed_s, "kind": event.kind, "step": event.step,
              "data": to_jsonable(event.data)}
    return _encode(record) + "\n"


def read_events(path: Path) -> Iterator[Event]:
    """The events of a journal (a run folder or the file itself), in order; RunFolderError names what is damaged."""
    path = path / FILE if path.is_dir() else path
    if path.exists() and not path.is_file():
        raise RunFolderError(f"{path} is no file", hint="give the folder of a run; it holds events.jsonl")
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if not line.endswith(b"\n"):
                    return
                yield _decode(line, number, path)
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}",
                             hint="give the folder of a run; it holds events.jsonl") from error


def journal_sha256(path: Path) -> str:
    """The hash of a journal as it stands; RunFolderError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}",
                             hint="give the folder of a run; it holds events.jsonl") from error


def _decode(line: bytes, number: int, path: Path) -> Event:
    where = f"{path}, line {number + 1}"
    try:
        raw: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(f"{where}: not JSON ({error})") from error
    if not isinstance(raw, dict) or raw.keys() != _KEYS or not isinstance(raw["data"], dict):
        raise _damaged(f"{where}: not an event")
    if raw["seq"] != number:
        raise _damaged(f"{where}: event {raw['seq']!r} stands where event {number} belongs")
    try:
        return Event(raw["seq"], raw["at"], raw["elapsed_s"], raw["kind"], raw["step"], from_jsonable(raw["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(f"{where}: {error}") from error


def _damaged(message: str) -> RunFolderError:
    return RunFolderError(message, hint="the journal was changed or damaged; restore it from a copy")


def lock(fd: int, path: Path) -> None:
    """Held until the file is closed, by the end of the process at the latest."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunFolderError(f"{path} is in use by another process",
                             hint="the run is going on, or is evaluated; wait for its end or stop it") from error
    except OSError:
        pass  # a file system without locks


def _whole_lines(fd: int) -> tuple[int, int]:
    """Bytes and number of complete lines, read from the start in blocks."""
    offset = size = lines = 0
    while block := os.pread(fd, 1 << 20, offset):
        if (last := block.rfind(b"\n")) >= 0:
            size, lines = offset + last + 1, lines + block.count(b"\n")
        offset += len(block)
    return size, lines
