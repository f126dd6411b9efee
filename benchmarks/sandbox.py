"""How fast minirepair opens a working copy, runs the visible tests in it and grades it, beside starting an interpreter.

One cycle is what one rollout with one test run asks of the environment: two runs in isolation. The interpreter is
started and awaited one after another; cycles run one after another too, and then as many at once as there are fork
servers.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median

from grpo_bench.contract import Task
from grpo_bench_env_minirepair.config import MiniRepairConfig
from grpo_bench_env_minirepair.environment import MiniRepair

from . import Result

_ROUNDS, _CYCLES, _STARTS = 5, 60, 8


def run() -> Iterator[Result]:
    config = MiniRepairConfig()
    single, several, bare = asyncio.run(_measure(config))
    yield Result("a sandbox cycle", single, "python -c pass", bare)
    yield Result(f"a sandbox cycle, {config.parallel} at once", several, "python -c pass", bare)


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
