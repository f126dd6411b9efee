"""Shutting the fork server in: namespaces of its own, an almost empty file system, no privileges.

Root makes the namespaces directly and then becomes nobody; anyone else needs a user namespace. The calling process
stays outside as a guard that ends with the server and takes it along; the server is process 1 of its namespace, so that
everything inside ends with it and no signal from inside can reach it.
"""

from __future__ import annotations

import os
import signal

from . import kernel

_NOBODY = 65534
_PRIVATE = (kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)
_STAGE = "/proc"  # exists everywhere, and no interpreter lives below it


def enter() -> list[str]:
    """Move into new namespaces; returns in the server, never in the guard. OSError where the system refuses."""
    names = ["mount", "pid", "net", "ipc", "uts"]
    try:
        kernel.unshare(_PRIVATE)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        kernel.unshare(_PRIVATE | kernel.CLONE_NEWUSER)
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        names = ["user", *names]
    server = os.fork()
    if server:
        _guard(server)
    return names


def _guard(server: int) -> None:
    """Wait for the server with nothing open, so that the pipes close when it ends; its status becomes ours."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    os.closerange(0, 64)
    _, status = os.waitpid(server, 0)
    os._exit(min(os.waitstatus_to_exitcode(status) % 256, 255))


def shut_file_system(view: list[str], masks: list[str]) -> None:
    """Leave a root that holds the folders of ``view``, read-only at their old paths, and those of ``masks`` emptied."""
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _STAGE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for folder in view:
        target = _STAGE + folder
        os.makedirs(target, exist_ok=True)
        kernel.mount(folder, target, "", kernel.MS_BIND | kernel.MS_REC)
        _remount_read_only(target)
    for folder in masks:
        if os.path.isdir(_STAGE + folder):
            flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_RDONLY
            kernel.mount("tmpfs", _STAGE + folder, "tmpfs", flags, "mode=755")
    _remount_read_only(_STAGE)
    kernel.pivot_into(_STAGE)


def _remount_read_only(target: str) -> None:
    """Flags that the mount already has are kept: a user namespace may not clear them."""
    had = os.statvfs(target).f_flag
    kept = had & (os.ST_NOEXEC | os.ST_NOATIME) | (kernel.MS_RELATIME if had & os.ST_RELATIME else 0)
    harmless = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", target, "", kernel.MS_BIND | kernel.MS_REMOUNT | harmless | kept)


def drop_privileges() -> None:
    """Become nobody where we are root and may, and give up every capability and the way to new ones."""
    kernel.drop_bounding_capabilities()
    if os.getuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        except OSError:
            pass  # a container's root without CAP_SETUID; the facts that the server states show the user it kept
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
