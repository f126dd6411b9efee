"""The backend for trusted toy tasks: what it does, and what it refuses to promise."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import PlanError
from grpo_bench_sandbox import Image, Limits, SandboxError, SandboxSpec, backend

LIMITS = Limits(grace_s=0.3, output_bytes=2048, file_mb=1, open_files=64)
QUICK_S = 30.0


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "code.py").write_text("x = 1\n")
    (folder / ".venv").mkdir()
    for command in (["init", "-q"], ["add", "-A"],
                    ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "task"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def play(source: Path, use: Callable[[Any], Awaitable[Any]], **spec: Any) -> Any:
    async def run() -> Any:
        box = await backend("process").open(SandboxSpec(source=source, **spec), LIMITS)
        try:
            return await use(box)
        finally:
            await box.close()

    return asyncio.run(run())


def sh(box: Any, script: str, timeout_s: float = QUICK_S) -> Any:
    return box.exec(["sh", "-c", script], timeout_s=timeout_s)


def test_it_says_that_it_isolates_nothing_and_is_never_chosen_by_itself() -> None:
    assert "NONE" in backend("process").facts(LIMITS)["isolation"]
    assert not backend("process").can_join


def test_commands_work_in_a_copy(source: Path) -> None:
    async def use(box: Any) -> str:
        assert (await sh(box, "cat code.py; cat; echo err >&2; exit 3")).exit_code == 3
        assert (await box.exec(["cat"], timeout_s=QUICK_S, stdin="in\n")).stdout == "in\n"
        missing = await box.exec(["no-such-command"], timeout_s=QUICK_S)
        assert missing.exit_code == 127 and "no-such-command" in missing.stderr
        await box.write("a/b.txt", "new\n")
        assert await box.read("a/b.txt") == "new\n"
        await sh(box, "echo 2 > code.py; rm -rf .git")
        return await box.diff()

    diff = play(source, use)
    assert "-x = 1\n+2\n" in diff and "+++ b/a/b.txt" in diff
    assert (source / "code.py").read_text() == "x = 1\n"


def test_a_command_that_takes_too_long_is_told_and_then_ended(source: Path) -> None:
    async def use(box: Any) -> tuple[Any, Any]:
        return (await sh(box, "trap 'echo told; exit' TERM; echo begun; while :; do sleep 0.05; done", 0.5),
                await sh(box, "trap '' TERM; while :; do sleep 0.05; done", 0.5))

    told, deaf = play(source, use)
    assert (told.exit_code, told.timed_out, told.stdout) == (124, True, "begun\ntold\n")
    assert (deaf.exit_code, deaf.timed_out) == (124, True)


def test_what_a_command_left_in_its_session_ends_with_it(source: Path) -> None:
    async def use(box: Any) -> int:
        done = await sh(box, "sleep 300 & echo $!")
        assert done.exit_code == 0 and not done.timed_out
        return int(done.stdout)

    pid = play(source, use)
    status = Path(f"/proc/{pid}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"


def test_output_files_and_descriptors_are_bounded(source: Path) -> None:
    async def use(box: Any) -> None:
        assert (await sh(box, "head -c 5000 /dev/zero | tr '\\0' x")).stdout == (
            "x" * 2048 + "\n[2952 more bytes of output were dropped]\n")
        assert (await sh(box, "head -c 2000000 /dev/zero > f; stat -c %s f; ulimit -n")).stdout == f"{1 << 20}\n64\n"

    play(source, use)


def test_reading_and_writing_stay_in_the_folder(source: Path, tmp_path: Path) -> None:
    async def use(box: Any) -> None:
        await sh(box, f"ln -s {tmp_path} out")
        for path in ("../escaped", "out/escaped", "/etc/hostname"):
            with pytest.raises(PermissionError, match="outside"):
                await box.write(path, "x")

    play(source, use)
    assert not (tmp_path / "escaped").exists()


def test_what_it_cannot_do_is_refused(source: Path) -> None:
    async def use(box: Any) -> None:
        assert await box.entry() is None
        with pytest.raises(SandboxError, match="no agent"):
            await box.spawn(["true"], env={})

    play(source, use)
    for spec in ({"sockets": {"/run/s": "/s"}}, {"image": Image("folder", Path("/"))}, {"mounts": {"/opt/x": "/usr"}}):
        with pytest.raises(PlanError, match="backend 'process'"):
            play(source, use, **spec)


def test_an_environment_is_linked_into_the_folder(source: Path) -> None:
    async def use(box: Any) -> str:
        return (await sh(box, "readlink .venv")).stdout

    shown = os.path.dirname(os.__file__)
    assert play(source, use, mounts={"/testbed/.venv": shown}) == f"{shown}\n"
