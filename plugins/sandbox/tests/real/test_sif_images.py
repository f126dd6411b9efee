"""Sandboxes on a SIF image, by every backend that runs them. The image is made here: some programs of this machine with
their libraries, a repository with a past, and files that an agent must not see."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import ProgramSandbox
from grpo_bench_sandbox import Image, Limits, SandboxError, SandboxSpec, backend
from grpo_bench_sandbox.sif import squashfs_of

from .boxes import used

PROGRAMS = ("bash", "sh", "env", "cat", "ls", "mkdir", "rm", "mv", "cp", "dd", "sleep", "id", "git", "dirname", "touch",
            "head", "setsid", "chmod")
ARCHITECTURES = {"x86_64": b"02", "aarch64": b"04"}
LIMITS = Limits(memory_mb=512, scratch_mb=48, file_mb=32, pids=128, output_bytes=4096, grace_s=1.0)
QUICK_S = 30.0
BACKENDS = [pytest.param(name, marks=pytest.mark.real(name)) for name in ("bwrap", "apptainer")]


def make_root(root: Path) -> None:
    """A root filesystem that is small and whole enough for a shell and git."""
    for folder in ("usr/bin", "tmp", "proc", "sys", "dev", "etc", "root", "var/tmp", "run", "home"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    wanted = {str(shutil.which(program)): f"usr/bin/{program}" for program in PROGRAMS}
    for program in tuple(wanted):
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        wanted |= {found: found.lstrip("/") for found in re.findall(r"(/\S+) \(0x", said)}
    for source, target in wanted.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(source), root / target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (root / "etc/group").write_text("root:x:0:\n")
    (root / "testbed/pkg/deep").mkdir(parents=True)
    (root / "testbed/pkg/code.py").write_text("x = 1\n")
    (root / "testbed/pkg/deep/more.py").write_text("y = 1\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "the fix"], ["remote", "add", "o", "http://h"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=root / "testbed", check=True)
    (root / "r2e_tests").mkdir()
    (root / "r2e_tests/test_hidden.py").write_text("secret\n")
    (root / "root/run_tests.sh").write_text("secret\n")


@pytest.fixture(scope="module")
def sif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed (package squashfs-tools)")
    folder = tmp_path_factory.mktemp("image")
    make_root(folder / "root")
    subprocess.run(["mksquashfs", "root", "root.sqfs", "-quiet", "-no-progress", "-all-root"], cwd=folder, check=True,
                   capture_output=True)
    payload = (folder / "root.sqfs").read_bytes()
    arch = ARCHITECTURES[platform.machine()] + b"\0"
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + arch + bytes(16)
    head += struct.pack("<8q", 0, 0, 47, 48, 4096, 48 * 585, 36864, len(payload))
    size, extra = len(payload), struct.pack("<2i3s", 1, 2, arch)
    entry = struct.pack("<i?3I7q", 0x4004, True, 1, 0xF0000001, 0, 36864, size, size, 0, 0, 0, 0) + bytes(128)
    image = folder / "image.sif"
    image.write_bytes((head.ljust(4096, b"\0") + entry + extra).ljust(36864, b"\0") + payload)
    return image


Use = Callable[[ProgramSandbox], Awaitable[Any]]


@pytest.fixture(params=BACKENDS)
def inside(request: pytest.FixtureRequest, sif: Path) -> Callable[..., Any]:
    """Runs a coroutine function with an open sandbox."""
    def run(use: Use, *, limits: Limits = LIMITS, masks: tuple[str, ...] = (), **spec: Any) -> Any:
        return used(request.param, SandboxSpec(image=Image("sif", sif, masks=masks), **spec), limits, use)

    return run


async def sh(box: ProgramSandbox, script: str, timeout_s: float = QUICK_S) -> str:
    result = await box.exec(["bash", "-c", script], timeout_s=timeout_s)
    return result.stdout + result.stderr


def test_the_repository_has_one_commit_and_no_remote(inside: Callable[..., Any]) -> None:
    async def use(box: ProgramSandbox) -> str:
        return await sh(box, "pwd; id -u; git log --format=%s; git remote; git status --short; cat pkg/code.py")

    assert inside(use) == "/testbed\n0\ntask\nx = 1\n"


def test_commands_see_what_was_written_and_the_diff_has_it(inside: Callable[..., Any]) -> None:
    async def use(box: ProgramSandbox) -> tuple[str, str, str]:
        await sh(box, "echo x = 2 >pkg/code.py; rm -rf pkg/deep; touch /root/mark; rm -rf .git; mkdir .git")
        await box.write("new/file.txt", "a\n")
        return await sh(box, "ls -a pkg /root/mark"), await box.read("/testbed/new/file.txt"), await box.diff()

    listed, text, diff = inside(use)
    assert listed.split() == ["/root/mark", "pkg:", ".", "..", "code.py"] and text == "a\n"
    assert "-x = 1\n+x = 2\n" in diff and "deleted file mode" in diff and "+a\n" in diff
    assert "mark" not in diff


def test_what_is_masked_cannot_be_read(inside: Callable[..., Any]) -> None:
    async def use(box: ProgramSandbox) -> str:
        return await sh(box, "cat /r2e_tests/* /root/run_tests.sh; ls -A /r2e_tests")

    assert "secret" in inside(use)
    assert "secret" not in inside(use, masks=("/r2e_tests", "/root/run_tests.sh", "/none/of/this"))


def test_there_is_neither_network_nor_power_nor_a_way_to_the_host(inside: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "host").write_text("of the host")
    attacks = {  # nothing is written: where an attack would work, it would harm the machine
        "devices": "while read -r l; do case $l in *:*) echo ${l%%:*};; esac; done </proc/net/dev",
        "capabilities": "while read -r l; do case $l in CapEff*|CapBnd*|NoNewPrivs*) echo $l;; esac; "
                        "done </proc/self/status",
        "host": f"cat {tmp_path}/host; for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger; do "
                "{ : >>$f; } 2>/dev/null && echo opened $f; done; "
                "cat /dev/sda /dev/vda /dev/mem | head -c 1; echo $?; { : >>/tmp/own; } && echo opened it",
    }

    async def use(box: ProgramSandbox) -> dict[str, str]:
        return {name: await sh(box, script) for name, script in attacks.items()}

    said = inside(use)
    assert said["devices"].split() == ["lo"]
    assert said["capabilities"].split()[1::2] == ["0000000000000000", "0000000000000000", "1"]
    assert "of the host" not in said["host"] and "0\n" in said["host"]
    assert "opened /proc" not in said["host"] and "opened it\n" in said["host"]


def test_files_are_bounded_and_mounts_are_read_only(inside: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "tool").write_text("a tool\n")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))

    async def use(box: ProgramSandbox) -> tuple[str, str]:
        return (await sh(box, "cat /opt/tools/tool; echo no >/opt/tools/tool; "
                              "[ -S /run/policy.sock ] && echo socket there"),
                await sh(box, "for i in 1 2 3; do dd if=/dev/zero of=/tmp/$i bs=1M count=30; done; ls /tmp; "
                              "dd if=/dev/zero of=/dev/shm/big bs=1M count=200"))

    with listening:
        shown, full = inside(use, mounts={"/opt/tools": str(folder)},
                             sockets={"/run/policy.sock": str(tmp_path / "socket")})
    assert shown.startswith("a tool\n") and "Read-only" in shown and "socket there" in shown
    assert full.count("No space left") == 3 or "File too large" in full
    assert (folder / "tool").read_text() == "a tool\n"


@pytest.mark.parametrize("inside", BACKENDS[:1], indirect=True)
def test_root_inside_cannot_put_a_link_where_mounts_go(inside: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "f").write_text("lent")

    async def use(box: ProgramSandbox) -> str:
        await sh(box, "echo y >> pkg/code.py; mv /opt/a /x; mv /opt /x; mv /run /y; ln -s /oldroot/tmp /opt; "
                      "ln -s /oldroot/tmp /run; ln -s /oldroot/tmp /opt/a; rm -rf /run/*; cd /; mv testbed z")
        assert "+y" in await box.diff()
        return await sh(box, "cat /opt/a/b/f")

    assert inside(use, mounts={"/opt/a/b": str(tmp_path)}) == "lent"


@pytest.mark.parametrize("inside", BACKENDS[1:], indirect=True)
def test_links_of_root_inside_stay_inside_and_a_working_folder_moved_away_ends_it(
        inside: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "f").write_text("lent")

    async def use(box: ProgramSandbox) -> None:
        await sh(box, "mv /opt/a /x; mv /opt /x; mv /run /y; ln -s /proc/1/root/tmp /opt; rm -rf /run; ln -s /tmp /run")
        assert (await sh(box, "cat /opt/a/b/f")).startswith(("lent", "cat: /opt/a/b/f:"))
        await sh(box, "cd /; mv testbed z")
        await box.diff()

    with pytest.raises(SandboxError, match="could not be started"):
        inside(use, mounts={"/opt/a/b": str(tmp_path)})
    assert not (Path("/tmp") / "a" / "b").exists()


def test_ends_of_commands_are_told_apart(inside: Callable[..., Any]) -> None:
    async def use(box: ProgramSandbox) -> list[Any]:
        return [await box.exec(argv, timeout_s=QUICK_S) for argv in (
            ["bash", "-c", "exit 7"], ["bash", "-c", "exit 255"], ["bash", "-c", "kill -9 $$"], ["no-such-program"])]

    results = inside(use)
    assert [result.exit_code for result in results] == [7, 255, 137, 127]
    assert not any(result.timed_out for result in results)


def test_a_command_that_takes_too_long_ends_with_its_whole_tree(inside: Callable[..., Any]) -> None:
    marker = f"3{os.getpid()}"

    async def use(box: ProgramSandbox) -> tuple[Any, str]:
        script = "trap 'echo asked; exit' TERM; while :; do sleep 0.1; done"
        polite = await box.exec(["bash", "-c", script], timeout_s=2)
        await box.exec(["bash", "-c", f"trap '' TERM; setsid sleep {marker} & sleep {marker}"], timeout_s=1)
        return polite, await sh(box, "echo fine")

    polite, after = inside(use)
    assert polite.exit_code == 124 and polite.timed_out and polite.stdout == "asked\n"
    assert after == "fine\n"
    assert not running(marker)


def test_a_program_has_its_streams_and_ends_when_told(inside: Callable[..., Any]) -> None:
    async def use(box: ProgramSandbox) -> tuple[bytes, int, bytes]:
        script = "cat; env; echo err >&2; exit 5"
        program = await box.spawn(["bash", "-c", script], env={"TOKEN": "a b"}, stdin=b"given\n")
        out, err = await asyncio.gather(program.stdout.read(), program.stderr.read())
        code = await program.wait()
        endless = await box.spawn(["bash", "-c", "echo on; sleep 1000"], env={})
        await endless.stdout.readline()
        await endless.kill()
        return out, code, err

    out, code, err = inside(use)
    assert out.startswith(b"given\n") and b"TOKEN=a b\n" in out and b"APPTAINER" not in out
    assert (code, err) == (5, b"err\n")


OWNER = """
import asyncio, sys
from pathlib import Path
from grpo_bench_sandbox import *
async def play():
    box = await backend(sys.argv[1]).open(SandboxSpec(image=Image("sif", Path(sys.argv[2]))), Limits())
    program = await box.spawn(["bash", "-c", f"echo on; setsid sleep {sys.argv[3]} & sleep {sys.argv[3]}"], env={})
    await program.stdout.readline()
    print("on", flush=True)
    await asyncio.sleep(1000)
asyncio.run(play())
"""


@pytest.mark.parametrize("name", BACKENDS)
def test_nothing_outlives_an_owner_that_is_killed(name: str, sif: Path) -> None:
    marker = f"4{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", OWNER, name, str(sif), marker], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"on\n"
        assert running(marker)
        owner.send_signal(signal.SIGKILL)

    async def emptied() -> None:
        async with asyncio.timeout(QUICK_S):
            while running(marker):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.05)

    asyncio.run(emptied())


@pytest.mark.real("apptainer")
def test_a_container_that_cannot_start_is_the_sandboxs_fault(sif: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sif"
    found = squashfs_of(sif)
    data = bytearray(sif.read_bytes())
    data[found.offset:found.offset + 4096] = bytes(4096)
    broken.write_bytes(data)

    async def play() -> None:
        await backend("apptainer").open(SandboxSpec(image=Image("sif", broken)), LIMITS)

    with pytest.raises(SandboxError, match="could not be started"):
        asyncio.run(play())


@pytest.mark.real("apptainer")
def test_commands_of_one_sandbox_wait_for_each_other(sif: Path) -> None:
    async def play() -> list[str]:
        box = await backend("apptainer").open(SandboxSpec(image=Image("sif", sif)), LIMITS)
        try:
            await asyncio.gather(*(sh(box, f"echo {word} begin >>log; sleep 0.2; echo {word} end >>log")
                                   for word in "abc"))
            return (await box.read("log")).splitlines()
        finally:
            await box.close()

    lines = asyncio.run(play())
    assert len(lines) == 6
    assert all(first.split()[0] == second.split()[0] for first, second in zip(lines[::2], lines[1::2]))


def running(marker: str) -> bool:
    """Whether a process with this word in its command line is there."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
