"""Fork servers that die, runs that are given up, and what is left afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from grpo_bench_env_minirepair import MiniRepairConfig, launch
from grpo_bench_env_minirepair.inside.serve import Outcome
from grpo_bench_env_minirepair.launch import SandboxError
from grpo_bench_env_minirepair.pool import Pool

GOOD = ("a.py", "def f(x):\n    return x + 1\n", "f", [[1]])


def descendants(pid: int) -> set[int]:
    """Processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def alive(pids: set[int]) -> set[int]:
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


async def gone(pids: set[int]) -> bool:
    for _ in range(400):
        if not alive(pids):
            return True
        await asyncio.sleep(0.05)
    return False


def with_pool(body, **settings):
    async def go():
        pool = Pool(MiniRepairConfig(**settings))
        await pool.start()
        try:
            return await body(pool)
        finally:
            await pool.close()

    return asyncio.run(go())


def test_closing_leaves_no_process() -> None:
    before = descendants(os.getpid())

    async def body(pool):
        await pool.call(*GOOD)
        return descendants(os.getpid()) - before

    started = with_pool(body, parallel=2)
    assert started
    assert not alive(started)


def test_a_dead_server_is_replaced() -> None:
    before = descendants(os.getpid())

    async def body(pool):
        for pid in descendants(os.getpid()) - before:
            with contextlib.suppress(ProcessLookupError):  # the server goes with its guard
                os.kill(pid, signal.SIGKILL)
        return [(await pool.call(*GOOD)).output for _ in range(3)]

    assert with_pool(body, parallel=1) == [b"0x2"] * 3


def test_a_server_that_cannot_be_had_is_an_error_and_no_verdict(monkeypatch) -> None:
    async def body(pool):
        await pool._drop(next(iter(pool._servers)))
        pool._idle.get_nowait()
        pool._idle.put_nowait(None)
        monkeypatch.setattr(launch, "command", lambda isolation: (sys.executable, "-c", "raise SystemExit(3)"))
        with pytest.raises(SandboxError, match=r"failed 3 times.*code 3"):
            await pool.call(*GOOD)
        monkeypatch.undo()
        return await pool.call(*GOOD)

    assert with_pool(body, parallel=1).output == b"0x2"


def test_a_run_that_is_given_up_disturbs_no_other() -> None:
    async def body(pool):
        slow = asyncio.create_task(pool.file({"a.py": "import time\ntime.sleep(60)"}, ["a.py"], "", 60.0))
        waiting = asyncio.create_task(pool.call(*GOOD))
        await asyncio.sleep(0.2)
        slow.cancel()
        return (await waiting).output, (await pool.call(*GOOD)).output

    assert with_pool(body, parallel=1, wall_s=60.0) == (b"0x2", b"0x2")


def test_runs_go_on_beside_each_other_and_never_block_the_loop() -> None:
    async def body(pool):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        nap = {"a.py": "import time\ntime.sleep(0.3)"}
        runs = await asyncio.gather(*(pool.file(nap, ["a.py"], "", 5.0) for _ in range(4)))
        ticking.cancel()
        return [run.exit_code for run in runs], ticks

    codes, ticks = with_pool(body, parallel=2)
    assert codes == [0] * 4
    assert ticks > 3


def test_an_isolation_that_is_refused_is_named(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    launch.probe.cache_clear()
    with pytest.raises(SandboxError, match="bubblewrap: not installed"):
        launch.probe("bubblewrap")
    launch.probe.cache_clear()


def test_an_isolation_that_does_not_answer_is_a_reason(monkeypatch) -> None:
    def hang(argv, **options):
        raise subprocess.TimeoutExpired(argv, options["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(SandboxError, match="process: no answer within 60 s"):
        launch.probe.__wrapped__("process")


def test_a_machine_without_a_table_of_system_calls_falls_back_and_says_so(monkeypatch) -> None:
    """Then the kernel's limits alone keep a candidate from making processes, and its time is limited all the same."""
    other = "from inside import kernel\nkernel.MACHINE = 'riscv64'\nfrom inside.main"
    monkeypatch.setattr(launch, "_START", launch._START.replace("from inside.main", other))
    for cache in (launch.command, launch.probe):
        cache.cache_clear()

    async def body(pool):
        fork = {"a.py": "import os\nif not os.fork():\n    os._exit(0)\nprint('BROKEN')"}
        loop = {"a.py": "while True:\n    pass"}
        return [await pool.file(files, ["a.py"], "", 30.0) for files in (fork, loop)]

    try:
        forked, looped = with_pool(body, isolation="process", parallel=1)
        assert launch.probe("process")[1]["seccomp"] == "no system call table for riscv64"
    finally:
        for cache in (launch.command, launch.probe):
            cache.cache_clear()
    assert (forked.exit_code, forked.output) == (1, b"")
    assert looped.outcome is Outcome.CPU


DRIVER = """
import asyncio
from grpo_bench_env_minirepair import MiniRepairConfig
from grpo_bench_env_minirepair.pool import Pool

async def main():
    pool = Pool(MiniRepairConfig(isolation={isolation!r}, parallel=1, wall_s=600.0))
    await pool.start()
    print("ready", flush=True)
    await pool.file({{"a.py": "import time\\ntime.sleep(600)"}}, ["a.py"], "", 600.0)

asyncio.run(main())
"""


@pytest.mark.parametrize("isolation", ["namespaces", "bubblewrap", "process"])
def test_everything_ends_with_a_killed_worker(isolation: str) -> None:
    try:
        launch.probe(isolation)
    except SandboxError as error:
        pytest.skip(error.message)

    expected = 2 if isolation == "process" else 3

    async def grown(pid: int) -> set[int]:
        for _ in range(400):
            if len(descendants(pid)) >= expected:
                break
            await asyncio.sleep(0.05)
        return descendants(pid)

    argv = [sys.executable, "-c", DRIVER.format(isolation=isolation)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"ready\n"
        pids = asyncio.run(grown(driver.pid))
        driver.kill()
    assert len(pids) >= expected
    assert asyncio.run(gone(pids))


def test_a_user_without_privileges_gets_namespaces() -> None:
    """As nobody, with an interpreter that nobody can reach."""
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    python = Path("/usr/bin/python3")
    inside = Path(launch.__file__).parent / "inside"
    if not python.exists():
        pytest.skip("no interpreter outside of root's home")
    argv = [str(python), "-S", "-s", "-P", "-B", "-c", launch._START, str(inside), "namespaces", "/usr/lib", ""]
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    done = subprocess.run(argv, input=b"", capture_output=True, env=launch.ENVIRONMENT, **nobody)
    if b"unshare" in done.stderr:
        pytest.skip("this machine does not permit user namespaces")
    assert b"'uid': 1000" in done.stdout, done.stderr
