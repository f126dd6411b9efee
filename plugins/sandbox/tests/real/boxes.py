"""What tests of real sandboxes share: limits that are soon reached, and a look at what is left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpo_bench_sandbox import BackendName, Limits, SandboxSpec, backend
from grpo_bench_sandbox.holding import PARENT, PREFIX

LIMITS = Limits(memory_mb=512, scratch_mb=64, file_mb=32, shm_mb=8, pids=64, open_files=128, output_bytes=4096,
                grace_s=0.5)
QUICK_S = 30.0
ROOT = os.geteuid() == 0


def used(name: BackendName, spec: SandboxSpec, limits: Limits, use: Callable[[Any], Awaitable[Any]]) -> Any:
    """What a coroutine function gives that gets an open sandbox."""
    async def play() -> Any:
        box = await backend(name).open(spec, limits)
        try:
            return await use(box)
        finally:
            await box.close()

    return asyncio.run(play())


def sh(box: Any, script: str, timeout_s: float = QUICK_S) -> Any:
    return box.exec(["sh", "-c", script], timeout_s=timeout_s)


def left_behind(owner: int | None = None) -> list[str]:
    """Folders, cgroups and processes of sandboxes of one owner, this process or one that has ended."""
    mark = f"{PREFIX}{owner or os.getpid()}-"
    found = [str(path) for path in PARENT.glob(f"{mark}*")]
    found += [str(path) for kind in ("memory", "pids", "") for path in Path("/sys/fs/cgroup", kind).rglob(f"{mark}*")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mounts = (process / "mounts").read_text()
        except OSError:
            continue
        if mark in mounts:
            found.append(str(process))
    return found


async def nothing_left(owner: int | None = None) -> None:
    async with asyncio.timeout(30):
        while left_behind(owner):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)
