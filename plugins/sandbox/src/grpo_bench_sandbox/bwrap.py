"""Sandboxes of bubblewrap: what a command sees, as arguments.

Every command gets user, pid, network, ipc and uts namespaces of its own, no capabilities, and a view of the file system
made of what the sandbox's holder shows. Only that view's working folder, home, /tmp and /dev/shm can be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from grpo_bench.contract import PlanError

from .holding import Holder, inside_uid
from .limits import Limits
from .spec import SandboxSpec

HOME = "/home/agent"
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def visible(spec: SandboxSpec) -> dict[str, str]:
    """Everything of the host that the sandbox sees besides its root, by its path inside."""
    found: dict[str, str] = {}
    for part in (spec.image.binds, spec.mounts, spec.sockets):
        for inside, host in part.items():
            if not os.path.isabs(inside) or os.path.normpath(inside) != inside or inside.startswith("//"):
                raise PlanError(f"{inside!r} is no plain absolute path inside a sandbox")
            if found.setdefault(inside, host) != host:
                raise PlanError(f"{inside} inside a sandbox cannot be both {found[inside]} and {host}")
    return found


def environment(spec: SandboxSpec) -> dict[str, str]:
    """The variables of every command."""
    home = HOME if inside_uid(spec) else "/root"
    return {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*", **spec.env}


def arguments(spec: SandboxSpec, limits: Limits, holder: Holder, *, env: Mapping[str, str], pristine: bool = False,
              extra: Mapping[str, str] | None = None) -> list[str]:
    """The command line up to the command. ``pristine`` shows the git folder that diffs start from at /run/pristine, and
    starts outside of the working folder, which may be shut; ``extra`` shows more of the holder's places."""
    root, uid = str(holder.mount), inside_uid(spec)
    options = ["--unshare-all", "--unshare-user", "--uid", str(uid), "--gid", str(uid), "--disable-userns",
               "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--hostname", "sandbox", "--clearenv"]
    options += _host_root(root) if spec.image.root == "host" else ["--bind", f"{root}/root", "/"]
    options += ["--proc", "/proc", *([] if spec.image.root == "host" else _kernel()), "--dev", "/dev",
                "--perms", "1777", "--size", str(limits.shm_mb << 20), "--tmpfs", "/dev/shm",
                "--bind", f"{root}/tmp", "/tmp"]
    if uid:
        options += ["--bind", f"{root}/home", HOME, "--symlink", "/tmp", "/var/tmp"]
    if spec.source is not None:
        options += ["--bind", f"{root}/work", spec.workdir]
    for inside, place in anchors(spec).items():
        options += ["--bind", f"{root}/{place}", inside]
    shown = {inside: holder.places[host] for inside, host in visible(spec).items()} | dict(extra or {})
    for inside in sorted(shown, key=lambda path: path.count("/")):
        options += ["--ro-bind", shown[inside], inside]
    if spec.image.root == "host":
        for path in [*spec.image.masks, *foreign(visible(spec))]:
            options += ["--ro-bind", f"{root}/empty", path]
    if pristine:
        options += ["--bind", f"{root}/pristine", "/run/pristine"]
    if spec.image.root == "host":
        options += ["--remount-ro", "/"]
    options += ["--remount-ro", "/dev", "--chdir", "/" if pristine else spec.workdir]
    for name, value in {**environment(spec), **env}.items():
        options += ["--setenv", name, value]
    return options


def anchors(spec: SandboxSpec) -> dict[str, str]:
    """The folders above what is shown that commands may write in, outermost first, with their places at the holder.
    Each is mounted on itself, so that no command can put a link there which the next one's mounts would follow, or move
    its working folder away."""
    shown, host = visible(spec), spec.image.root == "host"
    writable = {"/tmp": "tmp"} | ({HOME: "home"} if host else {"/": "root"})
    if spec.source is not None:
        writable[spec.workdir] = "work"
    ends = [PurePosixPath(path) for path in shown]
    if not host:
        ends += [PurePosixPath("/run/pristine"), PurePosixPath(spec.workdir, "any")]
    found: dict[str, str] = {}
    for folder in sorted({folder for end in ends for folder in end.parents}, key=lambda path: (len(path.parts), path)):
        above = [str(path) for path in (folder, *folder.parents)]
        base = next((path for path in above if path in writable), None)
        if base not in (None, str(folder)) and folder.parts[1] not in ("dev", "proc") and not shown.keys() & set(above):
            found[str(folder)] = f"{writable[base]}/{folder.relative_to(base)}"
    return found


def _kernel() -> list[str]:
    """Settings of the whole machine, read-only: to write them it takes no capability but only root's user id, which
    those who run on an image of root's files have."""
    names = (f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi"))
    return [part for name in names if os.path.exists(name) for part in ("--ro-bind", name, name)]


def _host_root(root: str) -> list[str]:
    options = ["--ro-bind", "/usr", "/usr", "--ro-bind", f"{root}/etc", "/etc"]
    for name in _LINKS:
        path = Path("/") / name
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return options


def foreign(shown: Mapping[str, str]) -> Iterable[str]:
    """Folders inside where packages of the host's interpreters are: they are no part of the task, and one of them could
    be the task's own package, repaired. Environments (with a pyvenv.cfg) were put there on purpose and stay."""
    roots = {"/usr": "/usr", "/usr/local": "/usr/local",
             **{inside: host for inside, host in shown.items()
                if os.path.isdir(host) and not os.path.exists(f"{host}/pyvenv.cfg")}}
    for inside, host in roots.items():
        kinds = (f"lib/python3*/{kind}-packages" for kind in ("site", "dist"))
        for found in sorted(path for kind in kinds for path in Path(host).glob(kind)):
            if found.is_dir() and not found.is_symlink():
                yield f"{inside}/{found.relative_to(host)}"
