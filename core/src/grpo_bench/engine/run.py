"""One run from plan to exit code: its folder, its observers, its signals, its end.

The run folder is made first and holds what was planned before anything starts. Whatever happens after that ends in a
RUN_ENDED event, closed parts and a status; only a killed process, or a disk that refuses the record, leaves without
one.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import structlog

from ..contract import (
    Boundary, GrpoBenchError, InputError, Interrupted, Kind, Phase, PluginError, RunFacts, RunFolderError, Status,
    load_object,
)
from ..observers import Observers, Tally
from ..policy import ChatFormat
from ..registry import Part, Plan
from .assembly import Assembly, bare_context, crossing
from .checkpoints import CheckpointStore, Restored
from .clock import RealClock
from .loop import Loop
from .recorder import Recorder
from .rollouts import first_error
from .watchdog import watch

Display = Literal["progress", "quiet"]
EXIT_CODES = {
    Status.TARGET_MET: 0, Status.COMPLETED: 0, Status.TARGET_MISSED: 1, Status.FAILED: 1, Status.INTERRUPTED: 130,
}

_STOPS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its status, the summary that ``--json`` prints, and the error of one that failed."""

    status: Status
    summary: dict[str, Any]
    folder: Path
    error: GrpoBenchError | None = None


def execute(plan: Plan, runs: Path, *, progress: bool, json_output: bool) -> int:
    """Run ``plan`` in a new folder under ``runs``; returns the process's exit code."""
    clock = RealClock()
    folder = make_folder(plan, runs, datetime.now(UTC))
    display: Display = "progress" if progress else "quiet"
    outcome = asyncio.run(conduct(plan, folder, clock, display=display, json_output=json_output, interruptible=True))
    if outcome.error is not None:
        print(f"grpo-bench: {outcome.error}", file=sys.stderr)
    if json_output:
        print(json.dumps(outcome.summary))
    return EXIT_CODES[outcome.status]


def make_folder(plan: Plan, runs: Path, now: datetime) -> Path:
    """``<time>-<profile>-<seed>`` with the resolved profile and the provenance in it, numbered where that exists."""
    stem = f"{now:%Y%m%d-%H%M%S}-{plan.name}-{plan.seed}"
    made: Path | None = None
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = runs / (stem if number == 1 else f"{stem}.{number}")
            if not folder.exists():
                folder.mkdir()
                made = folder
                break
        else:
            raise RunFolderError(f"{runs} holds 999 runs of this second")
        (folder / "profile.json").write_text(json.dumps(plan.to_json()["profile"], indent=2) + "\n")
        (folder / "provenance.json").write_text(json.dumps(dict(plan.provenance), indent=2) + "\n")
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise RunFolderError(f"cannot write a run folder in {runs}: {error.strerror or error}",
                             hint="choose another place with --runs") from error
    return folder


async def conduct(plan: Plan, folder: Path, clock: Any, *, display: Display = "quiet", json_output: bool = False,
                  interruptible: bool = False, restored: Restored | None = None) -> Outcome:
    """Run ``plan`` in ``folder`` on the current event loop, whatever its time is."""
    return await _Conductor(plan, folder, clock, display, json_output).run(restored, interruptible)


class _Conductor:
    def __init__(self, plan: Plan, folder: Path, clock: Any, display: Display, json_output: bool) -> None:
        self._plan = plan
        self._folder = folder
        self._clock = clock
        self._log = _Log(folder / "engine.log")
        self._logger = _logger(self._log, clock)
        self._tally = Tally()
        try:
            self._observers = Observers(
                folder, observers=[(part.name, self._observer(part)) for part in plan.observers], display=display,
                json_output=json_output, alarm=lambda name, message: self._recorder.alarm(name, message),
                logger=self._logger)
        except GrpoBenchError as error:
            self._logger.error("the observers cannot be made", exc_info=error)
            self._log.close()
            raise
        self._recorder = Recorder(clock, self._deliver)
        self._fabric_cpu_s = 0.0
        self._work: asyncio.Task[tuple[Status, str]] | None = None
        self._stopped = False
        self._parts: Assembly | None = None
        self._transport_folder = Path(tempfile.mkdtemp(prefix="grpo-bench-", dir=_memory_folder()))

    def _observer(self, part: Part) -> object:
        context = bare_context(self._plan, part, self._folder, self._clock, self._logger)
        with crossing(Boundary(plugin=part.name, role=part.role.value)):
            return load_object(part.descriptor.factory)(context)

    def _deliver(self, event: Any) -> None:
        self._tally.add(event)
        self._observers.event(event)

    async def run(self, restored: Restored | None, interruptible: bool) -> Outcome:
        try:
            with self._stoppable() if interruptible else nullcontext():
                ending = await self._until_closed(restored)
            return self._end(*ending)
        finally:
            self._observers.close()
            self._log.close()

    async def _until_closed(self, restored: Restored | None) -> tuple[Status, GrpoBenchError | None, str | None]:
        """Run, and close all parts in any case: the status, the error, and the hash of the final weights."""
        status, error, sha256 = Status.FAILED, None, None
        try:
            try:
                self._announce()
                self._work = asyncio.create_task(self._run_parts(restored), name="run")
                status, sha256 = await self._work
            except BaseException as raised:
                if self._stopped or isinstance(raised, asyncio.CancelledError):
                    self._logger.info("interrupted", exc_info=raised)
                    status = Status.INTERRUPTED
                    error = Interrupted("the run was interrupted", hint="its folder keeps what was done")
                else:
                    error = self._explain(first_error(raised))
            self._recorder.enter(Phase.SHUTDOWN)
        finally:
            await self._close()
        return status, error, sha256

    def _announce(self) -> None:
        plan, profile = self._plan, self._plan.profile
        self._observers.run_started(RunFacts(self._folder.name, self._folder, dict(plan.resolved), plan.scored))
        self._recorder.emit(
            Kind.RUN_STARTED, at_s=0.0, run=self._folder.name, profile=plan.name, seed=plan.seed,
            target=profile.validation.target, metric=profile.validation.metric, max_steps=profile.grpo.max_steps,
            prompts_per_step=profile.grpo.prompts_per_step, generations_per_prompt=profile.grpo.generations_per_prompt,
            scored=plan.scored)
        self._recorder.emit(Kind.PHASE, at_s=0.0, phase=Phase.STARTUP.value)

    async def _run_parts(self, restored: Restored | None) -> tuple[Status, str]:
        policy = self._plan.profile.policy
        chat_format = ChatFormat(self._plan.checkpoint.checkpoint, enable_thinking=policy.enable_thinking,
                                 tool_parser=policy.tool_parser)
        self._parts = Assembly(self._plan, self._folder, self._clock, self._logger, tuple(chat_format.stop_ids))
        await self._parts.start()
        store = CheckpointStore(self._folder / "checkpoints", self._plan.profile.checkpoint.keep)
        loop = Loop(self._parts, self._recorder, self._observers, store, self._clock, _digest(self._plan),
                    self._transport_folder)
        async with asyncio.TaskGroup() as tasks:
            watchdog = tasks.create_task(watch(self._recorder, self._clock, self._plan.profile.limits.stall_report_s,
                                               lambda: self._waiting(loop)), name="watchdog")
            status = await loop.run(restored)
            sha256 = await loop.finish()
            watchdog.cancel()
        return status, sha256

    async def _waiting(self, loop: Loop) -> dict[str, Any]:
        assert self._parts is not None
        return {"waiting": {"phase": self._recorder.phase_now.value, "prompts": loop.missing(),
                            "rollouts": await loop.pool.waiting()},
                "stacks": dict(await self._parts.fabric.stacks())}

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """SIGINT and SIGTERM stop the work, once, and never its closing; a second one ends the process."""
        loop = asyncio.get_running_loop()

        def release() -> None:
            for number in _STOPS:
                loop.remove_signal_handler(number)

        def stop() -> None:
            release()
            self._stopped = True
            if self._work is not None:
                self._work.cancel()

        for number in _STOPS:
            loop.add_signal_handler(number, stop)
        try:
            yield
        finally:
            release()

    async def _close(self) -> None:
        try:
            if self._parts is not None:
                await self._parts.close()
                self._fabric_cpu_s = await self._parts.fabric.cpu_seconds()
        except Exception as error:
            self._logger.warning("close failed", error=repr(error), exc_info=True)
        finally:
            shutil.rmtree(self._transport_folder, ignore_errors=True)

    def _explain(self, raised: BaseException) -> GrpoBenchError:
        """Log the traceback, record the error event, and give the error to show."""
        self._logger.error("run failed", exc_info=raised)
        error = raised if isinstance(raised, GrpoBenchError) else GrpoBenchError(
            f"{type(raised).__name__}: {raised}", hint=f"the traceback is in {self._folder / 'engine.log'}")
        remote = error.remote_traceback if isinstance(error, PluginError) else ""
        if remote:
            self._logger.error("in the worker", traceback=remote)
        boundary = error.boundary
        self._recorder.emit(Kind.ERROR, type=type(error).__name__, message=error.message, hint=error.hint,
                            plugin=boundary.plugin, role=boundary.role, task=boundary.task, traceback=remote)
        return error

    def _end(self, status: Status, error: GrpoBenchError | None, sha256: str | None) -> Outcome:
        ending = self._tally.ending(status, elapsed_s=self._recorder.elapsed(),
                                    cpu_s=self._clock.cpu_seconds() + self._fabric_cpu_s, weights_sha256=sha256)
        self._recorder.emit(Kind.RUN_ENDED, **ending)
        summary = self._tally.summary()
        self._observers.run_ended(summary)
        if isinstance(error, InputError):
            raise error
        return Outcome(status, summary, self._folder, error)


class _Log:
    """The engine's log. Lines that the disk refuses are lost: that is no reason to end a run."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a", buffering=1)

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.close()


def _digest(plan: Plan) -> str:
    return hashlib.sha256(json.dumps(dict(plan.resolved), sort_keys=True).encode()).hexdigest()


def _memory_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _logger(stream: Any, clock: Any) -> Any:
    """JSON lines into the run's ``engine.log``."""

    def stamp(_logger: Any, _method: str, event: Any) -> Any:
        return {"at": clock.now_utc(), **event}

    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.processors.add_log_level, stamp, structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer()],
        wrapper_class=structlog.BoundLogger)
