"""Temporary folders that do not outlive their process for long.

A scratch folder is held by a shared lock on the folder itself, which the kernel drops when the process ends, however it
ends; several processes may hold one. ``sweep`` removes the folders of this user that nobody holds: each process that
makes one sweeps first, and worker processes sweep when their engine has ended. A folder is only ever removed under an
exclusive lock, and whoever makes one looks, once it holds the lock, whether it is still there: so a live one is never
taken away. One thread of a process sweeps at a time: when ``sweep`` returns, no other is still at it, so that a process
that sweeps before it ends leaves no folder half removed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

__all__ = ["Scratch", "sweep"]

_PREFIX = "grpo-bench-scratch-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")
_MEMORY = Path("/dev/shm")
_SWEEPING = threading.Lock()
_SOCKET_PATH_ROOM = 70
"""Longest temporary folder that leaves room for a socket's name in the 104 bytes a socket address holds."""


class Scratch:
    """An empty private folder, there until ``remove`` or the orderly end of the process that made it: in ``parent``, as
    where other hosts have to see it; else in memory where the machine has a place with ``memory`` bytes left for it;
    else on disk. Where ``shared`` names one that another process holds, it is that one, and there until the last of
    them removes it."""

    def __init__(self, *, memory: int = 0, parent: Path | None = None, shared: Path | None = None) -> None:
        if parent is None:
            sweep(*((_MEMORY, _disk()) if memory else (_disk(),)))
            parent = _MEMORY if memory and _has_room(memory) else _disk()
        else:
            sweep(parent)
        self._lock = -1
        if shared is not None:
            self.path, self._lock = shared, _held(shared)
        while self._lock < 0:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = _held(self.path)
        self._owner = os.getpid()
        atexit.register(self.remove)

    def remove(self) -> None:
        """Remove it with all it holds, unless others hold it too; twice is fine."""
        if self._lock < 0 or os.getpid() != self._owner:
            return
        atexit.unregister(self.remove)
        if not _others_hold(self._lock):
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def sweep(*parents: Path) -> None:
    """Remove what ended processes left in these places; none given: in all places that this process would use."""
    with _SWEEPING:
        for parent in parents or (_MEMORY, _disk()):
            with suppress(OSError), os.scandir(parent) as entries:
                left = [entry.path for entry in entries if _NAME.fullmatch(entry.name)
                        and entry.stat(follow_symlinks=False).st_uid == os.getuid()]
                for path in left:
                    _remove_unheld(path)


def _remove_unheld(path: str) -> None:
    with suppress(OSError):
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _held(path: Path) -> int:
    """A descriptor that holds the new folder's lock; -1 where somebody swept the folder away before."""
    try:
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    with suppress(OSError):  # of a file system without locks: there, nobody can sweep either
        fcntl.flock(lock, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(lock)):
            return lock
    os.close(lock)
    return -1


def _others_hold(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    return False


def _has_room(size: int) -> bool:
    """Whether that many bytes may be put into memory."""
    return os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= size


def _disk() -> Path:
    folder = tempfile.gettempdir()
    return Path(folder if len(folder) < _SOCKET_PATH_ROOM else "/tmp")
