"""One event loop for a module's tests and one environment for each isolation that this machine permits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from grpo_bench.contract import ExecResult, Score, Task
from grpo_bench_env_minirepair import MiniRepairConfig, launch
from grpo_bench_env_minirepair.environment import MiniRepair
from grpo_bench_env_minirepair.patch import make

ISOLATIONS = ("namespaces", "bubblewrap", "process")
ORIGINAL = "def f(x):\n    return x - 1\n"


def a_task(tests: list[list[Any]], original: str = ORIGINAL) -> Task:
    """A task whose function ``f`` has these hidden tests."""
    files = {"solution.py": original, "visible_test.py": "from solution import f\nassert f(1) == 2, f(1)\n"}
    prompt = {"statement": "f should add one.", "path": "solution.py", "files": files,
              "test_command": ["python", "visible_test.py"]}
    return Task("t", "train", prompt, {"function": "f", "tests": tests}, "")


@dataclass
class Lab:
    """An environment driven from plain test functions."""

    isolation: str
    environment: MiniRepair
    wait: Callable[[Coroutine[Any, Any, Any]], Any]
    task: Callable[..., Task]

    def exec(self, source: str, *arguments: str, timeout_s: float = 20.0, stdin: str = "") -> ExecResult:
        async def go() -> ExecResult:
            sandbox = await self.environment.open(a_task([]), mounts={}, sockets={})
            await sandbox.write("attack.py", source)
            return await sandbox.exec(["python", "attack.py", *arguments], timeout_s=timeout_s, stdin=stdin)

        return self.wait(go())

    def score(self, source: str, tests: list[list[Any]]) -> Score:
        patch = make({"solution.py": ORIGINAL}, {"solution.py": source})
        return self.wait(self.environment.score(a_task(tests), patch))


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=ISOLATIONS)
def lab(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[Lab]:
    """Each isolation in turn; one that this machine refuses is skipped with its reason."""
    try:
        launch.probe(request.param)
    except launch.SandboxError as error:
        pytest.skip(error.message)
    environment = MiniRepair(MiniRepairConfig(isolation=request.param, parallel=1))
    runner.run(environment.start())
    yield Lab(request.param, environment, runner.run, a_task)
    runner.run(environment.close())


@pytest.fixture(scope="module")
def any_lab(runner: asyncio.Runner) -> Iterator[Lab]:
    """Whatever isolation is in force here."""
    environment = MiniRepair(MiniRepairConfig(parallel=1))
    runner.run(environment.start())
    yield Lab("auto", environment, runner.run, a_task)
    runner.run(environment.close())
