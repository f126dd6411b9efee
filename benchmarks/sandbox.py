"""How fast sandboxes are: minirepair's working copies, and the whole sandboxes of real software tasks.

A cycle of minirepair is what one rollout with one test run asks of the environment: two runs in isolation. The
interpreter is started and awaited one after another; cycles run one after another too, and then as many at once as
there are fork servers. A whole sandbox is opened, runs a command, and gives its diff, beside a working copy
that nothing isolates; 64 of them then stand open side by side. Last, a real task is opened and graded.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from grpo_bench.contract import Task
from grpo_bench_env_minirepair.config import MiniRepairConfig
from grpo_bench_env_minirepair.environment import MiniRepair
from grpo_bench_env_r2egym.config import R2EGymConfig
from grpo_bench_env_r2egym.environment import R2EGym
from grpo_bench_sandbox import BackendName, Limits, SandboxSpec, available, backend

from . import Result

_ROUNDS, _CYCLES, _STARTS = 5, 60, 8
_SANDBOXES, _SIDE_BY_SIDE, _GRADINGS = 20, 64, 5


def run() -> Iterator[Result]:
    config = MiniRepairConfig()
    single, several, bare = asyncio.run(_measure(config))
    yield Result("a sandbox cycle", single, "python -c pass", bare)
    yield Result(f"a sandbox cycle, {config.parallel} at once", several, "python -c pass", bare)
    yield from _whole()
    yield from _graded()


def _whole() -> Iterator[Result]:
    """Sandboxes of bubblewrap beside working copies that nothing isolates."""
    if (reason := available()["bwrap"]) is not None:
        print(f"whole sandboxes are not timed: {reason}")
        return
    with TemporaryDirectory() as folder:
        for command in (["init", "-q"], ["-c", "user.name=b", "-c", "user.email=b@localhost", "commit", "-q",
                                         "--allow-empty", "-m", "b"]):
            subprocess.run(["git", "-C", folder, *command], check=True)
        spec = SandboxSpec(source=Path(folder))
        ours, bare = asyncio.run(_steps("bwrap", spec)), asyncio.run(_steps("process", spec))
        for what, taken, beside in zip(("opening a sandbox", "a command in it", "its diff", "all of it"), ours, bare):
            yield Result(what, taken, "without isolation", beside)
        together = asyncio.run(_side_by_side("bwrap", spec))
        yield Result(f"all of it, {_SIDE_BY_SIDE} side by side", together / _SIDE_BY_SIDE, "alone", ours[-1])


def _graded() -> Iterator[Result]:
    """A rollout's whole cycle on a real task, the agent left out, beside its hidden tests run without any sandbox."""
    tasks = Path("~/.cache/grpo-bench/tasks/swe").expanduser()
    if not (tasks / "train.jsonl").exists() or available()["bwrap"] is not None:
        print("grading of real tasks is not timed: it needs bubblewrap and `grpo-bench tasks build --set swe`")
        return
    bare = _tests_alone(tasks)
    for what, both in (("a grade cycle by one mode", False), ("a grade cycle by both modes", True)):
        config = R2EGymConfig(train=tasks / "train.jsonl", validation=tasks / "validation.jsonl",
                              images=tasks / "images", backend="bwrap", cross_check=both)
        yield Result(what, asyncio.run(_grade(config)), "its tests alone", bare)


def _tests_alone(tasks: Path) -> float:
    """Median seconds of the first task's test script in a copy of its folder."""
    images = {path.name: path for path in (tasks / "images").iterdir()}
    first = R2EGym(R2EGymConfig(train=tasks / "train.jsonl", validation=tasks / "validation.jsonl",
                                images=tasks / "images")).tasks("train")[0]
    image = images[first.prompt["instance_id"]]
    binds = tomllib.loads((image / "image.toml").read_text())["binds"]
    with TemporaryDirectory() as folder:
        work = Path(folder, "testbed")
        shutil.copytree(image / "testbed", work, symlinks=True)
        (work / ".venv").rmdir()
        (work / ".venv").symlink_to((image / binds["/testbed/.venv"]).resolve())
        shutil.copytree(image / "r2e_tests", work / "r2e_tests")
        taken = []
        for _ in range(_GRADINGS):
            started = time.perf_counter()
            subprocess.run(["bash", image / "run_tests.sh"], cwd=work, capture_output=True, check=False)
            taken.append(time.perf_counter() - started)
    return median(taken)


async def _grade(config: R2EGymConfig) -> float:
    """Median seconds of opening, diff and grading of the first task; what it says of an empty patch must be 0."""
    environment = R2EGym(config)
    task = environment.tasks("train")[0]
    await environment.start()
    taken = []
    for _ in range(_GRADINGS):
        started = time.perf_counter()
        box = await environment.open(task, mounts={}, sockets={})
        try:
            patch = await box.diff()
        finally:
            await box.close()
        score = await environment.score(task, patch)
        if score.reward != 0.0:
            raise RuntimeError(f"a task that nobody repaired has reward {score.reward}: {score.detail}")
        taken.append(time.perf_counter() - started)
    await environment.close()
    return median(taken)


async def _steps(name: BackendName, spec: SandboxSpec) -> tuple[float, ...]:
    """Median seconds of opening, of a command, of the diff, of all with closing."""
    taken = []
    for _ in range(_SANDBOXES):
        started = time.perf_counter()
        box = await backend(name).open(spec, Limits())
        opened = time.perf_counter()
        await box.exec(["true"], timeout_s=60.0)
        ran = time.perf_counter()
        await box.diff()
        compared = time.perf_counter()
        await box.close()
        taken.append((opened - started, ran - opened, compared - ran, time.perf_counter() - started))
    return tuple(median(column) for column in zip(*taken))


async def _side_by_side(name: BackendName, spec: SandboxSpec) -> float:
    """Seconds in which so many sandboxes are opened, used while all of them are open, and closed; all must work."""
    started = time.perf_counter()
    boxes = await asyncio.gather(*(backend(name).open(spec, Limits()) for _ in range(_SIDE_BY_SIDE)))
    try:
        results = await asyncio.gather(*(box.exec(["echo", "here"], timeout_s=120.0) for box in boxes))
        await asyncio.gather(*(box.diff() for box in boxes))
    finally:
        await asyncio.gather(*(box.close() for box in boxes))
    failed = sum(result.stdout != "here\n" for result in results)
    if failed:
        raise RuntimeError(f"{failed} of {_SIDE_BY_SIDE} sandboxes side by side did not work")
    return time.perf_counter() - started


async def _measure(config: MiniRepairConfig) -> tuple[float, float, float]:
    """Median seconds of a cycle alone, of a cycle beside others, of an interpreter."""
    environment = MiniRepair(config)
    tasks = environment.tasks("train")[:_CYCLES]
    await environment.start()
    single, several, bare = [], [], []
    try:
        await asyncio.gather(*(_cycle(environment, task) for task in tasks))
        for _ in range(_ROUNDS):
            started = time.perf_counter()
            for task in tasks:
                await _cycle(environment, task)
            between = time.perf_counter()
            await asyncio.gather(*(_cycle(environment, task) for task in tasks))
            ended = time.perf_counter()
            single.append((between - started) / len(tasks))
            several.append((ended - between) / len(tasks))
            for _ in range(_STARTS):
                subprocess.run([sys.executable, "-c", "pass"], check=True)  # noqa: ASYNC221 - nothing else is to run
            bare.append((time.perf_counter() - ended) / _STARTS)
    finally:
        await environment.close()
    return median(single), median(several), median(bare)


async def _cycle(environment: MiniRepair, task: Task) -> None:
    sandbox = await environment.open(task, mounts={}, sockets={})
    try:
        await sandbox.exec(task.prompt["test_command"], timeout_s=5.0)
        await environment.score(task, await sandbox.diff())
    finally:
        await sandbox.close()
