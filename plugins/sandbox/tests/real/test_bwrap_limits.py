"""Sandboxes of bubblewrap for real: where their limits are, how what runs in them ends, and that nothing is left."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_sandbox import SandboxError, SandboxSpec, backend
from grpo_bench_sandbox.cgroups import make_cgroup

from .boxes import LIMITS, QUICK_S, ROOT, left_behind, nothing_left, sh

pytestmark = pytest.mark.real("bwrap")


def test_a_tree_ends_with_its_command_and_at_its_limit(inside: Any) -> None:
    """Daemons included: what left its session and its parent is a member of the same tree."""
    daemon = ("python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
              "time.sleep(300)'")

    async def use(box: Any) -> None:
        assert (await sh(box, f"{daemon}; (setsid sleep 301 >/dev/null 2>&1 &); echo done")).stdout == "done\n"
        late = await sh(box, f"{daemon}; trap 'echo told; exit 9' TERM; echo begun; sleep 302 & wait", 2.0)
        assert (late.exit_code, late.timed_out, late.stdout) == (124, True, "begun\ntold\n")
        deaf = await sh(box, "trap '' TERM; echo begun; while :; do sleep 1; done", 1.0)
        assert (deaf.exit_code, deaf.timed_out, deaf.stdout) == (124, True, "begun\n")
        assert (await sh(box, "ps -e -o args | grep -c '[s]leep 30'")).stdout == "0\n"

    inside(use)
    commands = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in commands.splitlines() if "sleep 30" in line]


def test_output_is_kept_up_to_a_bound_and_never_blocks(inside: Any) -> None:
    async def use(box: Any) -> Any:
        return await sh(box, "head -c 3000000 /dev/zero | tr '\\0' x; head -c 100 /dev/zero >&2")

    result = inside(use)
    assert result.exit_code == 0
    assert result.stdout == "x" * 4096 + f"\n[{3_000_000 - 4096} more bytes of output were dropped]\n"
    assert len(result.stderr) == 100


@pytest.mark.parametrize(("what", "script", "says"), [
    ("a file", "head -c 40M /dev/zero > big; stat -c %s big", str(32 << 20)),
    ("all files", "for i in 1 2 3 4; do head -c 30M /dev/zero > f$i; done; du -sm . | cut -f1", None),
    ("home and /tmp too", "for d in ~ /tmp .; do for i in 1 2; do head -c 30M /dev/zero > $d/f$i; done; done; "
     "du -smc ~ /tmp . | tail -1 | cut -f1", None),
    ("shared memory", "head -c 30M /dev/zero > /dev/shm/f; stat -c %s /dev/shm/f", str(8 << 20))])
def test_what_is_written_is_bounded(inside: Any, what: str, script: str, says: str | None) -> None:
    async def use(box: Any) -> str:
        return (await sh(box, f"({script}) 2>/dev/null")).stdout.strip()

    found = inside(use)
    assert found == says if says else 30 <= int(found) <= LIMITS.scratch_mb


def test_inodes_are_bounded(inside: Any) -> None:
    code = ("import os\nn = 0\ntry:\n    while n < 10**6:\n        open(f'i{n}', 'x').close(); n += 1\n"
            "except OSError as e:\n    print(e.errno, n < 100_000)")

    async def use(box: Any) -> str:
        return (await box.exec(["python3", "-c", code], timeout_s=120)).stdout

    assert inside(use) == "28 True\n"


def test_open_files_are_bounded(inside: Any) -> None:
    async def use(box: Any) -> str:
        return (await box.exec(["python3", "-c", "import os\ntry:\n    while True: n = os.open('/', 0)\n"
                                "except OSError: print(n)"], timeout_s=QUICK_S)).stdout

    assert inside(use) == f"{LIMITS.open_files - 1}\n"


def needs(kind: str) -> None:
    group = make_cgroup(LIMITS)
    group.remove()
    if kind not in group.holds and not (kind == "pids" and ROOT):
        pytest.skip(f"no cgroup may bound {kind} here")


def test_a_fork_bomb_hurts_itself_only(inside: Any) -> None:
    needs("pids")

    async def use(box: Any) -> None:
        bomb = asyncio.ensure_future(sh(box, "f() { f | f & }; f; sleep 100", 3.0))
        await asyncio.sleep(1.5)
        assert (await asyncio.to_thread(subprocess.run, ["true"])).returncode == 0
        await bomb
        assert (await sh(box, "echo alive")).stdout == "alive\n"

    inside(use)
    asyncio.run(nothing_left())


def test_memory_is_bounded(inside: Any) -> None:
    needs("memory")
    code = "x = []\nwhile True: x.append(bytearray(1 << 24)); print(len(x), flush=True)"

    async def use(box: Any) -> Any:
        return await box.exec(["python3", "-c", code], timeout_s=QUICK_S)

    result = inside(use)
    assert result.exit_code not in (0, 124)
    assert int(result.stdout.split()[-1]) * 16 <= LIMITS.memory_mb


def test_a_closed_sandbox_is_closed(inside: Any) -> None:
    async def use(box: Any) -> None:
        running = asyncio.ensure_future(sh(box, "sleep 305"))
        await asyncio.sleep(0.5)
        await box.close()
        await box.close()
        await asyncio.wait([running])
        with pytest.raises(SandboxError, match="closed"):
            await sh(box, "true")

    inside(use)
    asyncio.run(nothing_left())


def test_cancelling_leaves_nothing(source: Path) -> None:
    async def play() -> None:
        opening = [asyncio.ensure_future(backend("bwrap").open(SandboxSpec(source=source), LIMITS)) for _ in range(8)]
        for index, task in enumerate(opening):
            await asyncio.sleep(0.01 * index)
            task.cancel()
        for box in await asyncio.gather(*opening, return_exceptions=True):
            if not isinstance(box, BaseException):
                await box.close()
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        running = [asyncio.ensure_future(sh(box, "sleep 306")) for _ in range(4)]
        for index, task in enumerate(running):
            await asyncio.sleep(0.03 * index)
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert (await sh(box, "echo fine")).stdout == "fine\n"
        await box.close()
        await nothing_left()

    asyncio.run(play())


def test_whoever_is_killed_leaves_nothing_that_lives(source: Path, tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(
        "import asyncio, sys\nfrom pathlib import Path\n"
        "from grpo_bench_sandbox import Limits, SandboxSpec, backend\n"
        "async def main():\n"
        f"    box = await backend('bwrap').open(SandboxSpec(source=Path({str(source)!r})), Limits())\n"
        "    await box.entry()\n"
        "    program = await box.spawn(['sh', '-c', 'echo up; setsid sleep 307 & sleep 307'], env={})\n"
        "    print((await program.stdout.readline()).decode(), end='', flush=True)\n"
        "    await asyncio.sleep(300)\n"
        "asyncio.run(main())\n")
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "up\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()

    async def swept() -> None:
        async with asyncio.timeout(30):
            while any(item.startswith("/proc/") for item in left_behind(owner.pid)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        await box.close()
        assert left_behind(owner.pid) == []

    asyncio.run(swept())


def test_many_side_by_side(source: Path) -> None:
    async def one(number: int) -> str:
        box = await backend("bwrap").open(SandboxSpec(source=source), LIMITS)
        try:
            await sh(box, f"echo {number} > mine; sleep 0.2", 120)
            return (await sh(box, "cat mine", 120)).stdout + await box.diff()
        finally:
            await box.close()

    async def play() -> list[str]:
        gate = asyncio.Semaphore(16)

        async def gated(number: int) -> str:
            async with gate:
                return await one(number)

        return await asyncio.gather(*(gated(number) for number in range(64)))

    found = asyncio.run(play())
    assert [text.splitlines()[0] for text in found] == [str(number) for number in range(64)]
    assert all(f"+{number}" in text for number, text in enumerate(found))
    asyncio.run(nothing_left())


def test_a_program_nobody_reads_is_killed_all_the_same(inside: Any) -> None:
    async def use(box: Any) -> None:
        program = await box.spawn(["sh", "-c", "yes; sleep 308"], env={})
        await asyncio.sleep(0.5)
        async with asyncio.timeout(QUICK_S):
            await program.kill()
        assert await program.wait() != 0

    inside(use)
