"""One attempt at a run from plan to exit code: its folder, its observers, its signals, its end.

The run folder is made first and holds what was planned before anything starts. Whatever happens after that ends in a
RUN_ENDED event, closed parts and a status; only a killed process, or a disk that refuses the record, leaves without
one. Either way a later attempt can go on in the same folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import structlog

from ..contract import (
    Boundary, GrpoBenchError, InputError, Interrupted, Kind, Phase, PluginError, RunFacts, RunFolderError, Status,
    load_object,
)
from ..contract.history import CLOCKS
from ..fabric import Scratch
from ..observers import Journal, Observers, Tally
from ..policy import ChatFormat
from ..registry import Part, Plan
from ..steps.transport import WINDOW
from .assembly import Assembly, bare_context, crossing
from .checkpoints import CheckpointStore
from .clock import VirtualClock, disagreements, run_real
from .folder import make_folder, record_software
from .loop import Loop
from .recorder import Recorder
from .resume import CHECKPOINTS, Resumption
from .rollouts import first_error
from .stopping import Stops
from .watchdog import turning, watch

_IN_MEMORY = WINDOW + 1
"""Chunks of a refit for which there has to be room in memory: those under way, and one being written."""

Display = Literal["progress", "quiet"]
EXIT_CODES = {
    Status.TARGET_MET: 0, Status.COMPLETED: 0, Status.TARGET_MISSED: 1, Status.FAILED: 1, Status.INTERRUPTED: 130,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its status, the summary that ``--json`` prints, and the error of one that failed."""

    status: Status
    summary: dict[str, Any]
    folder: Path
    error: GrpoBenchError | None = None


def execute(plan: Plan, runs: Path, *, progress: bool, json_output: bool) -> int:
    """Run ``plan`` in a new folder under ``runs``; returns the process's exit code."""
    return _until_over(plan, lambda: make_folder(plan, runs, datetime.now(UTC)), None, progress, json_output)


def go_on(plan: Plan, folder: Path, resumption: Resumption | None, *, progress: bool, json_output: bool) -> int:
    """Run ``plan`` in the folder of an interrupted run; returns the process's exit code."""
    def place() -> Path:
        if resumption is None:
            record_software(folder, 1, plan)
        return folder

    return _until_over(plan, place, resumption, progress, json_output)


def _until_over(plan: Plan, place: Callable[[], Path], resumption: Resumption | None, progress: bool,
                json_output: bool) -> int:
    display: Display = "progress" if progress else "quiet"
    with Stops() as stops:
        folder = place()
        try:
            outcome = run_real(lambda clock: conduct(plan, folder, clock, display=display, json_output=json_output,
                                                     stops=stops, resumption=resumption))
        except GrpoBenchError as error:  # nothing was recorded: the run folder cannot be used
            summary = {**Tally().summary(), "run": folder.name, "status": Status.FAILED.value}
            outcome = Outcome(Status.FAILED, summary, folder, error)
        with suppress(OSError, ValueError):  # a run is not undone by nobody reading what it says
            if outcome.error is not None:
                print(f"grpo-bench: {outcome.error}", file=sys.stderr, flush=True)
        with suppress(BrokenPipeError):
            if json_output:
                print(json.dumps(outcome.summary), flush=True)
    return 2 if isinstance(outcome.error, InputError) else EXIT_CODES[outcome.status]


async def conduct(plan: Plan, folder: Path, clock: Any, *, display: Display = "quiet", json_output: bool = False,
                  stops: Stops | None = None, resumption: Resumption | None = None) -> Outcome:
    """Run ``plan`` in ``folder`` on the current event loop, whatever its time is, until it is over or stopped."""
    return await _Conductor(plan, folder, clock, display, json_output, resumption).run(stops)


class _Conductor:
    def __init__(self, plan: Plan, folder: Path, clock: Any, display: Display, json_output: bool,
                 resumption: Resumption | None) -> None:
        self._plan = plan
        self._resumption = resumption
        self._folder = folder
        self._clock = clock
        self._log = _Log(folder / "engine.log")
        self._logger = _logger(self._log, clock)
        self._tally = Tally()
        self._run = resumption.history[0].data["run"] if resumption else folder.name
        try:
            journal = _journal(folder, len(resumption.history) if resumption else 0)
        except RunFolderError:
            self._log.close()
            raise
        try:
            if resumption is not None:
                record_software(folder, resumption.attempt, plan)
            self._observers = Observers(
                folder, journal, observers=[(part.name, self._observer(part)) for part in plan.observers],
                display=display, json_output=json_output, logger=self._logger,
                alarm=lambda name, message: self._recorder.alarm(name, message))
        except GrpoBenchError as error:
            self._logger.error("the attempt cannot begin", exc_info=error)
            journal.close()
            self._log.close()
            raise
        self._recorder = Recorder(clock, self._deliver, first_seq=journal.next_seq)
        self._fabric_cpu_s = 0.0
        self._work: asyncio.Task[tuple[Status, str]] | None = None
        self._stopped = False
        self._signals = 0
        self._abandoned = asyncio.Event()
        self._parts: Assembly | None = None
        self._loop: Loop | None = None
        self._transport: Scratch | None = None

    def _observer(self, part: Part) -> object:
        context = bare_context(self._plan, part, self._folder, self._clock, self._logger)
        with crossing(Boundary(plugin=part.name, role=part.role.value)):
            return load_object(part.descriptor.factory)(context)

    def _deliver(self, event: Any) -> None:
        self._tally.add(event)
        self._observers.event(event)

    async def run(self, stops: Stops | None) -> Outcome:
        try:
            if stops is not None:
                stops.listen(self._stop)
            watched = stops is not None and self._plan.profile.limits.stall_report_s
            with turning(watched, self._logger) if watched else nullcontext():
                return self._end(*await self._until_closed())
        finally:
            if self._transport is not None:
                self._transport.remove()
            with suppress(GrpoBenchError):  # the journal's last sync; what it could not write was said before
                self._observers.close()
            self._log.close()

    async def _until_closed(self) -> tuple[Status, GrpoBenchError | None, str | None]:
        """Run, and close all parts in any case: the status, the error, and the hash of the final weights."""
        status, error, sha256 = Status.FAILED, None, None
        try:
            self._announce()
            self._work = asyncio.create_task(self._run_parts(), name="run")
            if self._stopped:
                self._work.cancel()
            await self._unless_abandoned(self._work)
            status, sha256 = self._work.result()
        except BaseException as raised:
            if self._stopped or isinstance(raised, asyncio.CancelledError):
                self._logger.info("interrupted", exc_info=raised)
                status = Status.INTERRUPTED
                error = Interrupted("the run was interrupted", hint=f"grpo-bench resume {self._folder} goes on with it")
            else:
                error = self._explain(first_error(raised))
        try:
            self._recorder.enter(Phase.SHUTDOWN)
        except GrpoBenchError as refused:
            status, error = Status.FAILED, error or self._explain(refused)
        await self._unless_abandoned(asyncio.create_task(self._close(), name="close"))
        return status, error, sha256

    def _stop(self) -> None:
        """Called for each signal: the first stops the work, the second all waiting for parts that do not end."""
        self._signals += 1
        if self._signals > 1:
            self._abandoned.set()
        elif self._work is None or not self._work.done():
            self._stopped = True
            if self._work is not None:
                self._work.cancel()

    async def _unless_abandoned(self, task: asyncio.Task[Any]) -> None:
        """Wait until the task is done, or the user will not wait any more."""
        abandoned = asyncio.create_task(self._abandoned.wait(), name="signal")
        try:
            await asyncio.wait([task, abandoned], return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandoned.cancel()
            task.cancel()

    def _announce(self) -> None:
        plan, resumption = self._plan, self._resumption
        history = resumption.history if resumption else ()
        for event in history:
            self._tally.add(event)
        facts = _facts(plan, self._run, self._clock)
        scored = facts["scored"] and not (self._tally.forced or (resumption and resumption.forced))
        self._observers.run_started(RunFacts(self._run, self._folder, dict(plan.resolved), scored, history))
        if resumption is None:
            self._recorder.emit(Kind.RUN_STARTED, at_s=0.0, **facts)
        else:
            data: dict[str, Any] = {"from_step": resumption.from_step, "from_seq": resumption.from_seq,
                                    "attempt": resumption.attempt, "forced": list(resumption.forced)}
            if resumption.forced:
                data["settings"] = plan.resolved
            self._recorder.emit(Kind.RESUMED, at_s=0.0, **data)
        self._recorder.emit(Kind.PHASE, at_s=0.0, phase=Phase.STARTUP.value)

    async def _run_parts(self) -> tuple[Status, str]:
        policy = self._plan.profile.policy
        chat_format = ChatFormat(self._plan.checkpoint.checkpoint, enable_thinking=policy.enable_thinking,
                                 tool_parser=policy.tool_parser)
        self._transport = Scratch(memory=_IN_MEMORY * self._plan.profile.refit.chunk_bytes)
        self._parts = Assembly(self._plan, self._folder, self._clock, self._logger, tuple(chat_format.stop_ids))
        async with asyncio.TaskGroup() as tasks:
            watchdog = tasks.create_task(watch(self._recorder, self._clock, self._plan.profile.limits.stall_report_s,
                                               self._waiting, self._logger), name="watchdog")
            await self._parts.start()
            store = CheckpointStore(self._folder / CHECKPOINTS, self._plan.profile.checkpoint.keep)
            self._loop = Loop(self._parts, self._recorder, self._observers, store, self._clock, self._run,
                              self._transport.path)
            status = await self._loop.run(self._resumption.restored if self._resumption else None)
            sha256 = await self._loop.finish()
            watchdog.cancel()
        return status, sha256

    async def _waiting(self) -> dict[str, Any]:
        assert self._parts is not None
        waiting: dict[str, Any] = {"phase": self._recorder.phase_now.value}
        if self._loop is not None:
            waiting |= {"prompts": self._loop.missing(), "rollouts": await self._loop.pool.waiting(),
                        "generator": await self._parts.generator_health()}
        return {"waiting": waiting, "stacks": dict(await self._parts.fabric.stacks())}

    async def _close(self) -> None:
        try:
            if self._parts is not None:
                await self._parts.close()
                self._fabric_cpu_s = await self._parts.fabric.cpu_seconds()
        except Exception as error:
            self._logger.warning("close failed", error=repr(error), exc_info=True)

    def _explain(self, raised: BaseException) -> GrpoBenchError:
        """Log the traceback, record the error event, and give the error to show."""
        self._logger.error("run failed", exc_info=raised)
        error = raised if isinstance(raised, GrpoBenchError) else GrpoBenchError(
            f"{type(raised).__name__}: {raised}", hint=f"the traceback is in {self._folder / 'engine.log'}")
        remote = error.remote_traceback if isinstance(error, PluginError) else ""
        if remote:
            self._logger.error("in the worker", traceback=remote)
        error.hint = "; ".join([*filter(None, [error.hint]), f"after that, grpo-bench resume {self._folder} goes on"])
        boundary = error.boundary
        try:
            self._recorder.emit(Kind.ERROR, type=type(error).__name__, message=error.message, hint=error.hint,
                                plugin=boundary.plugin, role=boundary.role, task=boundary.task, traceback=remote)
        except GrpoBenchError as refused:
            self._logger.error("the error cannot be recorded", exc_info=refused)
        return error

    def _end(self, status: Status, error: GrpoBenchError | None, sha256: str | None) -> Outcome:
        ending = self._tally.ending(status, elapsed_s=self._recorder.elapsed(),
                                    cpu_s=self._clock.cpu_seconds() + self._fabric_cpu_s, weights_sha256=sha256)
        try:
            for message in disagreements(ending, self._recorder.elapsed(), self._clock.since_process_start()):
                self._recorder.alarm(CLOCKS, message)
            self._recorder.emit(Kind.RUN_ENDED, **ending)
        except GrpoBenchError as refused:
            status, error = Status.FAILED, error or refused
        summary = {**self._tally.summary(), "status": status.value}
        self._observers.run_ended(summary)
        return Outcome(status, summary, self._folder, error)


def _without_waiting(path: str, flags: int) -> int:
    """A pipe without a reader is refused instead of waited for."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


class _Log:
    """The engine's log. Lines that the disk refuses are lost: that is no reason to end a run."""

    def __init__(self, path: Path) -> None:
        try:
            self._stream = open(path, "a", buffering=1, opener=_without_waiting)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RunFolderError(f"cannot open {path}: {error.strerror}",
                                 hint="the run folder must be writable") from error

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.close()


def _facts(plan: Plan, run: str, clock: Any) -> dict[str, Any]:
    """The data of a run's first event: all that its views need to know about it."""
    profile, described = plan.profile, plan.to_json()
    unscored = [*plan.unscored, *(["its time was virtual"] if isinstance(clock, VirtualClock) else [])]
    return {
        "run": run, "profile": plan.name, "seed": plan.seed, "target": profile.validation.target,
        "metric": profile.validation.metric, "max_steps": profile.grpo.max_steps,
        "prompts_per_step": profile.grpo.prompts_per_step,
        "generations_per_prompt": profile.grpo.generations_per_prompt, "scored": not unscored, "unscored": unscored,
        "settings": plan.resolved, **{key: described[key] for key in ("parts", "observers", "placements", "tasks")},
    }


def _journal(folder: Path, length: int) -> Journal:
    """The journal, locked; RunFolderError where it does not hold the ``length`` events that were read when planning."""
    journal = Journal(folder)
    if journal.next_seq != length:
        journal.close()
        raise RunFolderError(f"{folder} went on while it was looked at: its journal holds {journal.next_seq} events "
                             f"now, not {length}", hint="look at it again")
    return journal


def _logger(stream: Any, clock: Any) -> Any:
    """JSON lines into the run's ``engine.log``."""

    def stamp(_logger: Any, _method: str, event: Any) -> Any:
        return {"at": clock.now_utc(), **event}

    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.processors.add_log_level, stamp, structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer()],
        wrapper_class=structlog.BoundLogger)
