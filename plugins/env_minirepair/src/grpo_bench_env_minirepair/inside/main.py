"""Start of the fork server: shut in, say so in one line (a Python literal), serve."""

from __future__ import annotations

import importlib
import os
import signal
import sys

from . import namespaces, seccomp
from .serve import Server, limit_server

# Where the file system cannot be narrowed no file may be opened at all, so these are what a candidate can import.
_PRELOAD = ("bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math", "operator", "re",
            "string")


def main(mode: str, view: list[str], masks: list[str]) -> None:
    """``mode`` is namespaces, bubblewrap (which has shut us in already) or process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _PRELOAD if mode == "process" else ():
        importlib.import_module(name)
    null = os.open("/dev/null", os.O_RDWR)
    names: list[str] = []
    if mode == "namespaces":
        names = namespaces.enter()
        namespaces.shut_file_system(view, masks)
    elif mode == "bubblewrap":
        names = ["user", "mount", "pid", "net", "ipc", "uts"]
    namespaces.drop_privileges()
    requests, replies = os.dup(0), os.dup(1)
    os.dup2(null, 0)
    os.dup2(null, 1)
    limit_server()
    if mode == "process":
        sys.path.clear()
    guard, reason = seccomp.build(may_open=mode != "process")
    alone = mode != "process" and os.getpid() == 1
    facts = {"isolation": mode, "namespaces": names, "uid": os.getuid(), "seccomp": reason or "on",
             "python": sys.version.split()[0]}
    os.write(replies, f"{facts}\n".encode())
    try:
        Server(requests, replies, null, guard, alone).run()
    except BrokenPipeError:
        pass
