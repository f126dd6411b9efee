"""The holder of a sandbox's files, from the host's side; see :mod:`.inside.holder`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_bench.processes import exit_code, let_go, start_process

from .limits import Limits
from .spec import SandboxError, SandboxSpec

INSIDE = Path(__file__).parent / "inside"
PYTHON = (sys.executable, "-I", "-S")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where the host's own programs around a command are looked for."""
INSIDE_UID = 1000
PARENT = Path("/tmp")
PREFIX = "grpo-bench-sandbox-"
_UIDS = range(20_000, 60_000)
"""Of the host, one taken at random for each sandbox where root can choose: nobody's, and within what containers map."""
_INODES_PER_MB = 256


class Holder:
    """``mount`` is where the files are, in the holder's mount namespace only; ``uid`` is the host's user that commands
    run as, None where that is this process's own; ``places`` maps each path of the host that was asked for to where
    the holder shows it."""

    def __init__(self, process: asyncio.subprocess.Process, mount: Path, uid: int | None,
                 places: Mapping[str, str]) -> None:
        self.pid = process.pid
        self.mount = mount
        self.uid = uid
        self.places = places
        self._process = process

    @classmethod
    async def start(cls, spec: SandboxSpec, limits: Limits, image: Mapping[str, Any], sources: list[str],
                    anchors: Iterable[str] = ()) -> Holder:
        """``image`` says what the root filesystem is, ``sources`` what of the host the sandbox sees, and ``anchors``
        are folders that have to be there, by their places."""
        root = os.geteuid() == 0
        uid = None if not root or spec.image.root != "host" else random.choice(_UIDS)
        mount = _mount_point()
        config = {
            "owner": os.getpid(), "mount": str(mount), "scratch_mb": limits.scratch_mb, "root": uid is not None,
            "inodes": limits.scratch_mb * _INODES_PER_MB, "uid": uid, "sources": sources, "image": image,
            "anchors": list(anchors),
            "source": None if spec.source is None else str(spec.source), **_etc(inside_uid(spec)),
        }
        try:
            process = await start_process(
                *PYTHON, str(INSIDE / "holder.py"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env={"PATH": PATH}, start_new_session=True)
        except BaseException:
            mount.rmdir()
            raise
        places = {source: f"{mount}/at/{number}" for number, source in enumerate(sources)}
        holder = cls(process, mount, uid, places)
        try:
            await holder._ready(config)
        except BaseException:
            await asyncio.shield(holder.close())
            raise
        return holder

    async def _ready(self, config: Mapping[str, Any]) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(json.dumps(config).encode() + b"\n")
            await process.stdin.drain()
        if await process.stdout.readline() != b"ready\n":
            said = (await process.stderr.read()).decode(errors="replace").strip()
            raise SandboxError(f"the sandbox could not be made: {said.splitlines()[-1] if said else 'it said nothing'}")

    async def close(self) -> None:
        """End it; its files go with it. Twice is fine."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await exit_code(self._process)
        let_go(self._process)
        with suppress(OSError):
            self.mount.rmdir()


def _mount_point() -> Path:
    """An empty folder that every user can go to; those of owners that have ended are removed."""
    for left in PARENT.glob(f"{PREFIX}*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            with suppress(OSError):
                left.rmdir()
    made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=PARENT))
    made.chmod(0o755)
    return made


def inside_uid(spec: SandboxSpec) -> int:
    """The user inside: root where the image's files are root's."""
    return INSIDE_UID if spec.image.root == "host" else 0


def _etc(uid: int) -> dict[str, Any]:
    """An /etc for host roots: nobody's names but two, and what the loader and links need."""
    own = uid or INSIDE_UID
    users = f"root:x:0:0:root:/root:/bin/sh\nagent:x:{own}:{own}::/home/agent:/bin/bash\n"
    return {
        "etc": {"passwd": users, "group": f"root:x:0:\nagent:x:{own}:\n",
                "hosts": "127.0.0.1 localhost\n::1 localhost\n",
                "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n", "hostname": "sandbox\n"},
        "etc_copies": ["/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
                       "/etc/localtime", "/etc/terminfo", "/etc/magic", "/etc/mime.types"],
    }
