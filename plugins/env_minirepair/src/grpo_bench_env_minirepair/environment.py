"""The environment: lists of tasks, working copies, grading.

Grading takes nothing from the agent but a patch: it is applied to the task's original solution, and the function of the
result is called on the hidden inputs in a fresh child. Only the inputs enter the sandbox. The canonical text of each
result comes back and is compared here with that of the expected value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from grpo_bench.contract import PluginContext, Score, Site, Task, WorkerContext

from . import launch
from .config import MiniRepairConfig
from .inside.canonical import encode
from .inside.serve import Outcome
from .patch import PatchError, apply
from .pool import Pool
from .sandbox import MiniRepairSandbox


class TaskList(Sequence[Task]):
    """The tasks of one split, made when they are asked for and the latest of them kept."""

    def __init__(self, split: str, size: int, make: Callable[[str, int], Task]) -> None:
        self._split, self._indices = split, range(size)
        self._make = functools.lru_cache(maxsize=2048)(make)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self._make(self._split, item) for item in self._indices[index]]
        return self._make(self._split, self._indices[index])


class MiniRepair:
    """The contract's Environment."""

    def __init__(self, config: MiniRepairConfig) -> None:
        self._config = config
        self._pool = Pool(config)

    def tasks(self, split: str) -> Sequence[Task]:
        from .tasks import make_task

        config = self._config
        sizes = {"train": config.train_tasks, "heldout": config.heldout_tasks, "final": config.final_tasks}
        if split not in sizes:
            raise ValueError(f"no split {split!r}; there are {', '.join(sizes)}")
        return TaskList(split, sizes[split], make_task)

    async def start(self) -> None:
        await self._pool.start()

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> MiniRepairSandbox:
        if mounts or sockets:
            raise ValueError("minirepair's sandbox takes neither mounts nor sockets; use an agent that runs in process")
        return MiniRepairSandbox(task.prompt["files"], self._pool, self._config)

    async def score(self, task: Task, patch: str) -> Score:
        path, name, tests = task.prompt["path"], task.payload["function"], task.payload["tests"]
        try:
            source = apply(patch, path, task.prompt["files"][path])
        except PatchError as error:
            return Score(0.0, detail=f"the patch does not apply: {error}")
        run = await self._pool.call(path, source, name, [inputs for inputs, _ in tests])
        if run.outcome is not Outcome.EXITED:
            return Score(0.0, detail=f"stopped at the limit of {run.outcome.name.lower()}")
        results = run.output.split(b"\n")
        wanted = [encode(expected).encode() for _, expected in tests]
        passed = sum(result == want for result, want in zip(results, wanted, strict=False))
        whole = bool(tests) and results == wanted and run.exit_code == 0
        return Score(float(whole), detail=f"{passed} of {len(tests)} hidden tests pass")

    async def close(self) -> None:
        await self._pool.close()


def make(context: PluginContext) -> MiniRepair:
    """The engine's object, which lists tasks."""
    return MiniRepair(context.config)


def make_in_worker(config: MiniRepairConfig, context: WorkerContext) -> MiniRepair:
    """A rollout worker's object, which runs and grades."""
    return MiniRepair(config)


def describe(config: MiniRepairConfig, site: Site) -> Mapping[str, Any]:
    """Facts for the plan: the isolation that this machine permits, found by trying it."""
    return launch.probe(config.isolation)[1]
