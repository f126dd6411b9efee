"""A task's folder, and sandboxes made of it."""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_sandbox import Limits, SandboxSpec

from .boxes import LIMITS, used


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "code.py").write_text("x = 1\n")
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("pkg/code.py")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"],
                    ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "-m", "task"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


Use = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def inside(source: Path) -> Callable[..., Any]:
    """Runs a coroutine function with an open sandbox."""
    def run(use: Use, *, limits: Limits = LIMITS, **spec: Any) -> Any:
        return used("bwrap", SandboxSpec(source=source, **spec), limits, use)

    return run
