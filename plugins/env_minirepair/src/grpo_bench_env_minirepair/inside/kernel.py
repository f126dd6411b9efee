"""Linux system calls that the standard library does not offer, through ctypes."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT = 1, 2, 4, 32
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1 << 12, 1 << 14, 1 << 18, 1 << 21
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38

MACHINE = os.uname().machine
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x2008_0522


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = _libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _check(result, f"mount {target}")


def pivot_into(folder: str) -> None:
    """Make ``folder``, a mount point, the root and let go of the old one."""
    if MACHINE not in _PIVOT_ROOT:
        raise OSError(f"no pivot_root number known for {MACHINE}")
    os.chdir(folder)
    _check(_libc.syscall(ctypes.c_long(_PIVOT_ROOT[MACHINE]), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount2")
    os.chdir("/")


def prctl(option: int, first: int, second: int = 0) -> None:
    _check(_libc.prctl(option, first, second, 0, 0), "prctl")


def drop_bounding_capabilities() -> None:
    """Empty the bounding set where we may; who may not has no capability to lose either."""
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break


def drop_capabilities() -> None:
    """Empty the permitted, effective and inheritable sets."""
    if MACHINE in _CAPSET:
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        _check(_libc.syscall(ctypes.c_long(_CAPSET[MACHINE]), header, (ctypes.c_uint32 * 6)()), "capset")
