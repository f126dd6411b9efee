"""What virtual time cannot hold: threads, subprocesses and sockets, whose answers come when they come.

While a thread runs a virtual loop, making one of them raises there. An audit hook sees it, however deep in a library it
is; it cannot be taken away again, so there is one for the process, which looks only at threads that asked for it. What
raises no audit event is wrapped for as long as anybody is inside. What C code starts by itself is not seen.
"""

from __future__ import annotations

import _posixsubprocess
import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REAL = {
    "_thread.start_new_thread": "threads", "_thread.start_joinable_thread": "threads",
    "subprocess.Popen": "subprocesses", "os.fork": "subprocesses", "os.forkpty": "subprocesses",
    "os.posix_spawn": "subprocesses", "os.exec": "subprocesses", "os.system": "subprocesses",
    "socket.__new__": "sockets", "socket.getaddrinfo": "sockets", "socket.gethostbyname": "sockets",
}
"""Audit events, and what they are of."""
_UNAUDITED = ((threading.Thread, "start", "threads"), (_posixsubprocess, "fork_exec", "subprocesses"))
"""What Python 3.11 has no event for, or no Python."""
_MOST = 80


class _Thread(threading.local):
    is_virtual = False


class _Watch:
    """Who is inside, over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._hooked = False
        self._real: list[Any] = []

    def enter(self) -> None:
        with self._lock:
            if not self._hooked:
                sys.addaudithook(_hook)
                self._hooked = True
            if not self._inside:
                self._real = [getattr(owner, name) for owner, name, _ in _UNAUDITED]
                for (owner, name, what), real in zip(_UNAUDITED, self._real, strict=True):
                    setattr(owner, name, _wrapped(real, f"{owner.__name__}.{name}", what))
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for (owner, name, _), real in zip(_UNAUDITED, self._real, strict=True):
                    setattr(owner, name, real)


_thread = _Thread()
_watch = _Watch()


def refused(what: str, used: str, about: object = "") -> RuntimeError:
    """The error for a use of ``what``; ``about`` says which, where that can be said."""
    which = f"({shown if len(shown := str(about)) <= _MOST else f'{shown[:_MOST]}...'})" if about != "" else ""
    return RuntimeError(f"a virtual-time run has no {what}, and {used}{which} was called in one")


@contextmanager
def without() -> Iterator[None]:
    """Make them raise in this thread."""
    _watch.enter()
    before, _thread.is_virtual = _thread.is_virtual, True
    try:
        yield
    finally:
        _thread.is_virtual = before
        _watch.leave()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in _REAL and _thread.is_virtual:
        raise refused(_REAL[event], event, args[0] if args and _REAL[event] == "subprocesses" else "")


def _wrapped(real: Any, name: str, what: str) -> Any:
    @functools.wraps(real)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _thread.is_virtual:
            raise refused(what, name)
        return real(*args, **kwargs)

    return guarded
