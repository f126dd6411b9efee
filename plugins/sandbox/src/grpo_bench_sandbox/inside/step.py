"""Begins one command of a sandbox: joins what its holder holds, gives up what the command may not have, and becomes it.

Run with ``python -I -S`` and one argument of JSON: the ``holder``, ``user`` (whether the holder has a user namespace),
``cgroups``, ``limits``, the ``uid`` to take (None: the present one), the ``owner`` to die with, and ``argv``.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

PDEATHSIG, JOIN_SESSION_KEYRING = 1, 1
KEYCTL = {"x86_64": 250, "aarch64": 219}
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    config = json.loads(sys.argv[1])
    for path in config["cgroups"]:
        with open(path, "w") as file:
            file.write("0")
    names = ["user", "mnt"] if config["user"] else ["mnt"]
    spaces = [os.open(f"/proc/{config['holder']}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names]
    for space in spaces:
        if LIBC.setns(space, 0):
            raise SystemExit(f"sandbox: joining its holder: {os.strerror(ctypes.get_errno())}")
    for name, value in config["limits"].items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
    if config["uid"] is not None:
        os.setgroups([])
        os.setresgid(config["uid"], config["uid"], config["uid"])
        os.setresuid(config["uid"], config["uid"], config["uid"])
    LIBC.syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)  # the host's keys stay with the host
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != config["owner"]:
        raise SystemExit("sandbox: its owner is gone")
    os.umask(0o022)
    os.execv(config["argv"][0], config["argv"])  # by its path: what is needed to look for it may be out of reach by now


if __name__ == "__main__":
    main()
