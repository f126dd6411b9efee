"""The environment: the engine's process makes one to list tasks, each rollout worker its own to run and grade them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from grpo_bench.contract import PluginContext, Score, Site, Task, WorkerContext

from . import Config, diffs
from .evaluate import ISOLATION, Evaluator
from .sandbox import KataSandbox
from .tasks import read_tasks


class Environment:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._evaluator = Evaluator(config)

    def tasks(self, split: str) -> Sequence[Task]:
        """The list of a split: the same every time, ids and fingerprints unique."""
        tasks = read_tasks(self._config.tasks)
        if split not in tasks:
            raise ValueError(f"no split {split!r}; there are {', '.join(tasks)}")
        return tasks[split]

    async def start(self) -> None:
        """Once per rollout worker, before its first sandbox."""

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> KataSandbox:
        """A working copy in the task's first state, which shares nothing with any other."""
        return KataSandbox(task.payload["files"], task.payload["cases"][0], self._evaluator)

    async def score(self, task: Task, patch: str) -> Score:
        """Grade a patch from the task's first state on, taking nothing else from the agent's sandbox."""
        path, cases = task.prompt["path"], task.payload["cases"]
        try:
            answer = diffs.apply(patch, path, task.payload["files"][path])
        except diffs.PatchError as error:
            return Score(0.0, detail=str(error))
        values = await self._evaluator.values(answer, [case["given"] for case in cases])
        if values is None:
            return Score(0.0, detail="stopped at its limit")
        wanted = [json.dumps(case["value"], sort_keys=True) for case in cases]
        passed = sum(value == want for value, want in zip(values, wanted, strict=False))
        return Score(float(values == wanted), detail=f"{passed} of {len(cases)} cases")

    async def close(self) -> None:
        """Nothing is held between calls."""


def make(context: PluginContext) -> Environment:
    """The descriptor's factory."""
    return Environment(context.config)


def make_in_worker(config: Config, context: WorkerContext) -> Environment:
    """The descriptor's worker factory."""
    return Environment(config)


def describe(config: Config, site: Site) -> Mapping[str, str]:
    """Facts for the plan: how candidate code is shut in."""
    return {"isolation": ISOLATION}
