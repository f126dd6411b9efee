"""The environment: lists of tasks, sandboxes for agents, grading.

An agent's sandbox has the task's repository with a history of one commit and none of the hidden files. Grading takes
nothing from it but the patch, and runs each of its modes in a sandbox of its own with the tests mounted read-only. A
sandbox that does not start or breaks is tried again and then is a failure of the environment: an exception from
``open``, and no reward from ``score``. What a patch does, such as not applying or taking too long, is a reward of 0.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from grpo_bench.contract import (
    Entry, ExecResult, GrpoBenchError, Missing, PluginContext, Program, ProgramSandbox, Score, Task,
    WorkerContext,
)
from grpo_bench_sandbox import SandboxError, SandboxSpec, backend

from . import files
from .config import R2EGymConfig
from .files import SPLITS
from .grading import command
from .grading.hidden import Hidden, hidden_of
from .grading.runs import GRADING, TESTS, Job, Verdict, exact, hardened
from .images import TaskImage, find_image
from .rows import Row
from .tasks import TaskList, row_of

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
LOG_BYTES = 1 << 26
"""Output of a test run that is kept: the summary, which counts, comes last."""
_DETAIL = 4000
"""Characters of a score's detail."""


class SandboxStartError(GrpoBenchError):
    """No sandbox could be had. This says nothing about the policy."""


class AgentSandbox:
    """A sandbox that gives its place back when it is closed."""

    def __init__(self, inner: ProgramSandbox, places: asyncio.Semaphore) -> None:
        self._inner = inner
        self._places: asyncio.Semaphore | None = places

    async def exec(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> ExecResult:
        return await self._inner.exec(argv, timeout_s=timeout_s, stdin=stdin)

    async def read(self, path: str) -> str:
        return await self._inner.read(path)

    async def write(self, path: str, text: str) -> None:
        await self._inner.write(path, text)

    async def diff(self) -> str:
        return await self._inner.diff()

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str], stdin: bytes = b"") -> Program:
        return await self._inner.spawn(argv, env=env, stdin=stdin)

    async def entry(self) -> Entry | None:
        return await self._inner.entry()

    async def close(self) -> None:
        places, self._places = self._places, None
        try:
            await self._inner.close()
        finally:
            if places is not None:
                places.release()


class R2EGym:
    """The contract's Environment."""

    def __init__(self, config: R2EGymConfig) -> None:
        self._config = config
        self._agents = asyncio.Semaphore(config.parallel)
        self._gradings = asyncio.Semaphore(min(config.parallel, os.cpu_count() or 1))

    def tasks(self, split: str) -> Sequence[Task]:
        if split not in SPLITS:
            raise ValueError(f"no split {split!r}; there are {', '.join(SPLITS)}")
        return TaskList(split, files.indexed(self._config)[split])

    async def start(self) -> None:
        self._backend = backend(self._config.backend)

    async def open(self, task: Task, *, mounts: Mapping[str, str], sockets: Mapping[str, str]) -> AgentSandbox:
        image = await asyncio.to_thread(self._image, await asyncio.to_thread(row_of, task.payload))
        await self._agents.acquire()
        try:
            inner = await self._opened(image, mounts, sockets)
        except BaseException:
            self._agents.release()
            raise
        return AgentSandbox(inner, self._agents)

    async def score(self, task: Task, patch: str) -> Score:
        config = self._config
        row = await asyncio.to_thread(row_of, task.payload)
        image = await asyncio.to_thread(self._image, row)
        job = Job(patch, row.expected, config.test_timeout_s, config.command_timeout_s)
        async with self._gradings, AsyncExitStack() as stack:
            try:
                hidden = await stack.enter_async_context(hidden_of(image, self._for_grading))
                return await self._graded(job, image, hidden)
            except (SandboxError, SandboxStartError, OSError) as error:
                return Score(None, detail=f"the environment could not grade: {error}")

    async def close(self) -> None:
        """Nothing is left to end: every sandbox is its caller's to close, and ends with this process."""

    async def _graded(self, job: Job, image: TaskImage, hidden: Hidden) -> Score:
        own, other = self._config.grading, {"hardened": "r2e_exact", "r2e_exact": "hardened"}[self._config.grading]
        try:
            script: command.Command | None = command.parse(hidden.script)
            why = ""
        except command.CommandError as error:
            script, why = None, str(error)
        if script is None and own == "hardened":
            return Score(None, detail=f"run_tests.sh cannot be graded as hardened: {why}; use grading = \"r2e_exact\"")
        verdict = await self._verdict(own, job, image, hidden, script)
        faults, notes = list(verdict.faults), [verdict.detail]
        if self._config.cross_check and script is not None and not verdict.timed_out:
            second = await self._verdict(other, job, image, hidden, script)
            faults += second.faults
            if second.reward != verdict.reward:
                faults.append("the modes disagree")
                notes.append(f"{other} says {second.reward:g}: {second.detail}")
        counters = {"tampering": 1} if faults else {}
        detail = " | ".join(notes)[:_DETAIL].encode(errors="replace").decode()  # names in it are the patch's to choose
        return Score(verdict.reward, detail=detail, counters=counters)

    async def _verdict(self, mode: str, job: Job, image: TaskImage, hidden: Hidden,
                       script: command.Command | None) -> Verdict:
        """One mode's verdict, in a fresh sandbox; one that breaks is replaced."""
        mounts = {f"{image.workdir}/{TESTS}": str(hidden.tests), f"{image.workdir}/{GRADING}": str(hidden.grading)}
        for left in reversed(range(self._config.start_retries + 1)):
            try:
                async with self._for_grading(image, mounts) as sandbox:
                    if mode == "hardened" and script is not None:
                        return await hardened(job, sandbox, script)
                    return await exact(job, sandbox)
            except SandboxError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    @asynccontextmanager
    async def _for_grading(self, image: TaskImage, mounts: Mapping[str, str]) -> AsyncIterator[ProgramSandbox]:
        sandbox = await self._opened(image, mounts, {}, grading=True)
        try:
            yield sandbox
        finally:
            await asyncio.shield(sandbox.close())

    async def _opened(self, image: TaskImage, mounts: Mapping[str, str], sockets: Mapping[str, str], *,
                      grading: bool = False) -> ProgramSandbox:
        limits = self._config.limits
        if grading:
            limits = limits.model_copy(update={"output_bytes": max(LOG_BYTES, limits.output_bytes)})
        spec = SandboxSpec(
            image=image.for_grading if grading else image.image, workdir=image.workdir, source=image.source,
            mounts=mounts, sockets=sockets, env={"PATH": f"{image.workdir}/.venv/bin:{PATH}"})
        reasons: list[str] = []
        while len(reasons) <= self._config.start_retries:
            try:
                return await self._backend.open(spec, limits)
            except (SandboxError, OSError) as error:
                reasons.append(f"{type(error).__name__} {error}".strip())
        raise SandboxStartError(f"no sandbox started in {len(reasons)} tries: {'; '.join(dict.fromkeys(reasons))}",
                                hint="`grpo-bench sandbox check` shows what this machine can give")

    def _image(self, row: Row) -> TaskImage:
        found = find_image(self._config.images, row.instance_id, row.dataset)
        if found is None:
            raise Missing(f"{self._config.images} has no image for {row.instance_id}",
                          hint="`grpo-bench tasks images build` makes images")
        return found


def make(context: PluginContext) -> R2EGym:
    """The engine's object, which lists tasks."""
    return R2EGym(context.config)


def make_in_worker(config: R2EGymConfig, context: WorkerContext) -> R2EGym:
    """A rollout worker's object, which opens and grades."""
    return R2EGym(config)
