"""The environment: tasks whose answer is ``right``, and sandboxes that are dictionaries.

A task has one file, which should say ``right``; a command that runs finds nothing unusual, tests pass.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence

from grpo_bench.contract import ExecResult, PluginContext, Sandbox, Score, Task, WorkerContext

from .config import EnvironmentConfig
from .faults import Faults, spend

FILE = "answer.txt"
START = "unknown\n"


class MockSandbox:
    """The contract's Sandbox."""

    def __init__(self, task: Task, config: EnvironmentConfig, faults: Faults) -> None:
        self._task = task
        self._config = config
        self._faults = faults
        self._files = {FILE: START}

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        await self._faults.at("exec", task=self._task.id, about=self._task.id)
        await spend(min(self._config.exec_s, timeout_s))
        if self._config.exec_s > timeout_s:
            return ExecResult(124, "", "", timed_out=True)
        return ExecResult(0, f"{' '.join(argv)}: nothing unusual\n", "")

    async def read(self, path: str) -> str:
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    async def write(self, path: str, text: str) -> None:
        self._files[path] = text

    async def diff(self) -> str:
        await self._faults.at("diff", task=self._task.id, about=self._task.id)
        lines = [difflib.unified_diff(({FILE: START}.get(path, "")).splitlines(True), text.splitlines(True),
                                      f"a/{path}", f"b/{path}") for path, text in sorted(self._files.items())]
        return "".join(line for part in lines for line in part)

    async def close(self) -> None:
        self._files = {}


class MockEnvironment:
    """The contract's Environment."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config = config
        self._faults = Faults("environment", config.faults)

    def tasks(self, split: str) -> Sequence[Task]:
        counts = {"train": self._config.train_tasks, "heldout": self._config.heldout_tasks,
                  "final": self._config.final_tasks}
        if split not in counts:
            raise ValueError(f"no split {split!r}; there are {', '.join(counts)}")
        return [_task(split, index) for index in range(counts[split])]

    async def start(self) -> None:
        await self._faults.at("start")

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> Sandbox:
        await self._faults.at("open", task=task.id, about=task.id)
        await spend(self._config.open_s)
        return MockSandbox(task, self._config, self._faults)

    async def score(self, task: Task, patch: str) -> Score:
        fault = await self._faults.at("score", task=task.id, about=task.id)
        await spend(self._config.score_s)
        right = f"+{task.payload['answer']}" in patch.splitlines()
        if fault == "nan":
            return Score(float("nan"))
        return Score(float(right != (fault == "wrong")))

    async def close(self) -> None:
        """Nothing is held."""


def _task(split: str, index: int) -> Task:
    task_id = f"mock-{split}-{index:04d}"
    prompt = {"statement": f"Task {index} of {split}: find the right answer.", "path": FILE, "files": {FILE: START},
              "test_command": ["test"]}
    payload = {"answer": "right"}
    fingerprint = hashlib.sha256(json.dumps([task_id, prompt, payload]).encode()).hexdigest()
    return Task(task_id, split, prompt, payload, fingerprint)


def create(context: PluginContext) -> MockEnvironment:
    """The factory, for the list of tasks."""
    return MockEnvironment(context.config)


def create_in_worker(config: EnvironmentConfig, context: WorkerContext) -> MockEnvironment:
    """The factory inside a rollout worker."""
    return MockEnvironment(config)
