"""How a process of the host moves into a sandbox, for good.

:func:`enter` takes the plain data of the contract's ``Entry``. It needs the standard library only and is read from its
file by whoever has another interpreter. The caller has a single thread and no other descriptor of the host's left open.
What returns is a child, a member of the sandbox like any other; the process that called stays outside until the child
ends, and then ends as it did.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import struct
import sys
from typing import Any

PDEATHSIG, DUMPABLE, CAPBSET_DROP, NO_NEW_PRIVS, CAP_AMBIENT, AMBIENT_CLEAR_ALL = 1, 4, 24, 38, 47, 4
GET_PARENT, JOIN_SESSION_KEYRING = 0xB702, 1
CAPSET = {"x86_64": 126, "aarch64": 91}
KEYCTL = {"x86_64": 250, "aarch64": 219}
LIBC = ctypes.CDLL(None, use_errno=True)


def enter(entry: dict[str, Any]) -> None:
    """Become a member of the sandbox that ``entry`` leads into; OSError where it cannot be entered."""
    for path in entry["cgroups"]:
        with open(path, "w") as file:
            file.write("0")
    spaces = {name: os.open(f"/proc/{entry['pid']}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
              for name in entry["namespaces"]}
    user = spaces.pop("user", None)
    if os.geteuid() == 0:
        os.setgroups([])
    elif user is not None:
        with contextlib.suppress(OSError):  # of a parent that is not ours to enter; then the sandbox's own will do
            join(fcntl.ioctl(user, GET_PARENT))
    for space in spaces.values():
        join(space)
    if user is not None:
        join(user)
    for space in [*spaces.values(), user]:
        if space is not None:
            os.close(space)
    follow_child(os.fork())
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    give_up(entry)
    os.environ.clear()
    os.environ.update(entry["env"])
    os.chdir(entry["cwd"])


def join(space: int) -> None:
    if LIBC.setns(space, 0):
        raise OSError(ctypes.get_errno(), f"joining a namespace: {os.strerror(ctypes.get_errno())}")


def follow_child(pid: int) -> None:
    """In the process that stays outside: end as the child does."""
    if pid == 0:
        return
    for descriptor in range(3):
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def give_up(entry: dict[str, Any]) -> None:
    """Identity, capabilities and resources beyond what the sandbox has."""
    for name, value in entry["limits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    for capability in range(64):
        if LIBC.prctl(CAPBSET_DROP, capability, 0, 0, 0):
            break
    LIBC.prctl(CAP_AMBIENT, AMBIENT_CLEAR_ALL, 0, 0, 0)
    LIBC.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)  # the host's keys stay with the host
    os.setresgid(entry["gid"], entry["gid"], entry["gid"])
    os.setresuid(entry["uid"], entry["uid"], entry["uid"])
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    if LIBC.syscall(CAPSET[os.uname().machine], header, nothing):
        raise OSError(ctypes.get_errno(), "giving up capabilities")
    if LIBC.prctl(NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "giving up new privileges")
    LIBC.prctl(DUMPABLE, 1, 0, 0, 0)
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.setsid()
    os.umask(0o022)


if __name__ == "__main__":
    import json

    enter(json.loads(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
