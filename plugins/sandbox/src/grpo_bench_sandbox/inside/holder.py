"""Holds one sandbox's files: a program whose mount namespace has them, and which ends with the process that started it.

Run with ``python -I -S``. It reads one line of JSON, makes a mount namespace of its own (and a user namespace, where it
is not root), mounts a tmpfs of bounded size on the folder ``mount``, and fills that: a copy of the sandbox's working
folder, its home and temporary folder, and, under ``at``, everything of the host that the sandbox is to see, since the
unprivileged user that the sandbox runs as may not be able to go there. Then it says ``ready`` and waits. The kernel
drops all of it when this program and the last command that joined it have ended, however they end.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import stat
import subprocess
import sys

NEWNS, NEWUSER = 0x00020000, 0x10000000
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != config["owner"]:
        raise SystemExit("the owner is gone")
    own_mounts(as_root=config["image"]["root"] == "sif")
    root, uid = config["mount"], config["uid"]
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV,
          f"size={config['scratch_mb']}m,nr_inodes={config['inodes']},mode=755")
    for name in ("at", "empty", "home", "tmp", "etc"):
        os.mkdir(f"{root}/{name}")
    os.chmod(f"{root}/tmp", 0o1777)
    for name, text in config["etc"].items():
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    for path in config["etc_copies"] if config["image"]["root"] == "host" else ():
        if os.path.exists(path):
            run("cp", "-a", "--", path, f"{root}/etc/")
    for number, source in enumerate(config["sources"]):
        expose(source, f"{root}/at/{number}")
    image(root, config["image"])
    if config["source"] is not None:
        run("cp", "-a", "--reflink=auto", "--", config["source"], f"{root}/work")
        if os.path.isdir(f"{root}/work/.git"):
            run("cp", "-a", "--", f"{root}/work/.git", f"{root}/pristine")
    if not os.path.isdir(f"{root}/pristine"):
        os.mkdir(f"{root}/pristine")
    for place in config["anchors"]:
        if os.path.islink(f"{root}/{place}"):
            raise SystemExit(f"{place.partition('/')[2]} is a link in the image, and nothing can be shown below it")
        if not os.path.isdir(f"{root}/{place}"):
            os.mkdir(f"{root}/{place}")
            if config["root"]:
                os.chown(f"{root}/{place}", uid, uid)  # who makes the last folder of the path, to mount on
    own = [name for name in ("work", "pristine", "home") if os.path.isdir(f"{root}/{name}")]
    if os.geteuid() == 0 and config["root"]:
        run("chown", "-Rh", f"{uid}:{uid}", "--", *(f"{root}/{name}" for name in own))
    print("ready", flush=True)
    sys.stdin.buffer.read()


def own_mounts(*, as_root: bool) -> None:
    """A mount namespace; where this is not root, in a user namespace that has this user as itself, or as its root,
    which is whom a SIF's files belong to and who may mount them."""
    uid, gid = os.geteuid(), os.getegid()
    if uid:
        checked(LIBC.unshare(NEWUSER), "a user namespace")
        for name, text in (("setgroups", "deny"), ("uid_map", f"{0 if as_root else uid} {uid} 1"),
                           ("gid_map", f"{0 if as_root else gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    checked(LIBC.unshare(NEWNS), "a mount namespace")
    mount(None, "/", None, REC | PRIVATE)


def image(root: str, spec: dict) -> None:
    """The root filesystem of a folder or a SIF image, writable through an overlay on the tmpfs."""
    if spec["root"] == "host":
        return
    lower = f"{root}/lower"
    for name in ("lower", "upper", "overlay", "root"):
        os.mkdir(f"{root}/{name}")
    if spec["root"] == "folder":
        lower = spec["path"]
    elif spec["trusted"]:
        run("mount", "-t", "squashfs", "-o", f"ro,loop,offset={spec['offset']}", spec["path"], lower)
    else:
        serve(lower, "squashfuse", "-f", "-o", f"ro,offset={spec['offset']}", spec["path"], lower)
    options = f"lowerdir={lower},upperdir={root}/upper,workdir={root}/overlay"
    mount("overlay", f"{root}/root", "overlay", NOSUID | NODEV, options + ("" if spec["trusted"] else ",userxattr"))


def serve(folder: str, *argv: str) -> None:
    """Run a file system's program, which ends with this one, until ``folder`` is mounted."""
    def die_with_me() -> None:
        LIBC.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              preexec_fn=die_with_me)
    while not os.path.ismount(folder):
        if server.poll() is not None:
            assert server.stderr is not None
            raise SystemExit(f"{argv[0]}: {server.stderr.read().decode(errors='replace').strip()}")
        select.select([], [], [], 0.005)


def expose(source: str, target: str) -> None:
    """The host's file or folder. A socket is opened to everybody: who may reach it is decided by where it is shown."""
    if stat.S_ISSOCK(os.stat(source).st_mode):
        os.chmod(source, 0o666)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        open(target, "w").close()
    mount(source, target, None, BIND | REC)


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [item.encode() if item else None for item in (source, target, kind, data)]
    result = LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    checked(result, f"mounting {source or kind or 'privately'} on {target}")


def run(*argv: str) -> None:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{argv[0]}: {done.stderr.strip()}")


def checked(result: int, what: str) -> None:
    if result:
        raise SystemExit(f"{what}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main()
