"""Imports OpenHands once and forks it into sandboxes: one program per worker, outside of them, driven over a socket.

It talks with its maker in JSON packets on descriptor 0, a Unix socket: first it says ``{"ready": {...}}`` with what the
import cost. ``{"id", "entry"}`` with three descriptors (stdin, stdout, stderr) forks a child, which closes every other
descriptor, enters the sandbox that ``entry`` leads into, and runs what ``agent_main`` runs in a program of its own.
``{"id", "kill": true}`` ends a child. Of each child that has ended it says ``{"id", "exit", "cpu_s", "peak_mb"}``. It
ends, and its children with it, when its maker does. Itself it takes no request from a sandbox, reads none of its files
and writes no file.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from typing import Any

_LONGEST = 2**18
_PR_SET_PDEATHSIG = 1


def serve(control: socket.socket, enter_path: str, started: float) -> None:
    """Answer requests until the maker is gone."""
    import agent_main
    import codeact
    import relay

    assert relay, "what runs inside has to be here before: our own files are not there under this name"
    codeact.offered(1)
    spec = importlib.util.spec_from_file_location("enter", enter_path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    gc.collect()
    gc.freeze()
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    used = resource.getrusage(resource.RUSAGE_SELF)
    control.send(json.dumps({"ready": {
        "wall_s": time.monotonic() - started, "cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024,
        "threads": threading.active_count()}}).encode())
    children: dict[int, str] = {}
    while True:
        readable, _, _ = select.select([control, wake], [], [])
        if wake in readable:
            wake.recv(4096)
            _reap(control, children)
        if control in readable:
            data, given, _, _ = socket.recv_fds(control, _LONGEST, 3)
            if not data:
                break
            request = json.loads(data)
            if "kill" in request:
                _kill([pid for pid, name in children.items() if name == request["id"]])
                continue
            pid = os.fork()
            if pid == 0:
                _child(request["entry"], given, module.enter, agent_main.main)
            children[pid] = request["id"]
            for descriptor in given:
                os.close(descriptor)
    _kill(children)


def _child(entry: dict[str, Any], given: list[int], enter: Any, main: Any) -> None:
    """Become the agent; does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        started = time.monotonic()
        _die_with_parent()
        for target, descriptor in enumerate(given):
            os.dup2(descriptor, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        gc.unfreeze()
        enter(entry)
        main(started)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(control: socket.socket, children: dict[int, str]) -> None:
    while children:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        if (name := children.pop(pid, None)) is not None:
            control.send(json.dumps({
                "id": name, "exit": os.waitstatus_to_exitcode(status), "cpu_s": used.ru_utime + used.ru_stime,
                "peak_mb": used.ru_maxrss / 1024}).encode())


def _kill(pids: Any) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    STARTED = time.monotonic()
    _die_with_parent()
    CONTROL = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    serve(CONTROL, sys.argv[1], STARTED)
