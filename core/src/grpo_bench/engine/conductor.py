"""One attempt at what has a journal, a training or the evaluation of one: its observers, its signals, its end.

Whatever happens once the journal is open ends in a RUN_ENDED event, closed parts and a status; only a killed process,
or a disk that refuses the record, leaves without one. Either way a later attempt can go on. What is done in between is
a subclass's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ..contract import (
    Boundary, GrpoBenchError, Interrupted, Kind, Phase, PluginError, Role, RunFacts, RunFolderError, Status,
    load_object,
)
from ..contract.history import CLOCKS
from ..observers import Journal, Observers, Tally
from ..policy import ChatFormat
from ..registry import Part, Plan
from ..scratch import Scratch
from ..steps.transport import WINDOW
from .assembly import Assembly, bare_context, crossing
from .attempt import Attempt, Busy, Display, Opening, Outcome
from .clock import disagreements
from .folder import record_software, software_of, software_sha256
from .log import Log, logger
from .recorder import Recorder
from .rollouts import first_error
from .stopping import Stops
from .watchdog import turning, watch

_IN_MEMORY = WINDOW + 1
"""Chunks of a refit for which there has to be room in memory: those under way, and one being written."""


class Conductor(ABC):
    """Runs ``plan`` on the current event loop, whatever its time is, until the work is over or stopped."""

    def __init__(self, plan: Plan, attempt: Attempt, clock: Any, display: Display, json_output: bool) -> None:
        self._plan = plan
        self._attempt = attempt
        self._folder = attempt.folder
        self._clock = clock
        self._log = Log(attempt.folder / "engine.log")
        self._logger = logger(self._log, clock)
        self._tally = Tally()
        try:
            journal = _journal(attempt)
        except RunFolderError:
            self._log.close()
            raise
        try:
            if attempt.software is not None:
                record_software(attempt.records, attempt.software, plan)
            self._observers = Observers(
                attempt.folder, journal, observers=[(part.name, self._observer(part)) for part in plan.observers],
                display=display, json_output=json_output, logger=self._logger, rollouts=not plan.modelled,
                alarm=lambda name, message: self._recorder.alarm(name, message))
        except GrpoBenchError as error:
            self._logger.error("the attempt cannot begin", exc_info=error)
            journal.close()
            self._log.close()
            raise
        self._recorder = Recorder(clock, self._deliver, first_seq=journal.next_seq)
        self._fabric_cpu_s = 0.0
        self._work: asyncio.Task[tuple[Status, str | None]] | None = None
        self._stopped = False
        self._signals = 0
        self._abandoned = asyncio.Event()
        self._parts: Assembly | None = None
        self._busy: Busy | None = None
        self._transport: Scratch | None = None

    @abstractmethod
    def _opening(self) -> Opening:
        """Asked when the tally knows the history."""

    @abstractmethod
    def _assembled(self, stop_token_ids: tuple[int, ...]) -> Assembly: ...

    @abstractmethod
    async def _perform(self, parts: Assembly, transport: Path) -> tuple[Status, str | None]:
        """The work on started parts: the status, and the hash of the final weights."""

    @abstractmethod
    def _goes_on(self) -> str:
        """How to go on after an attempt that came to no end, in words."""

    def _ends_soon(self) -> bool:
        """Told that time will be up: whether the work ends of itself, its state saved, and need not be stopped."""
        return False

    async def _failed(self, error: GrpoBenchError) -> None:  # noqa: B027 (few attempts have more to say)
        """The work failed, and nothing is closed yet."""

    async def _work_parts(self) -> tuple[Status, str | None]:
        self._transport = Scratch(memory=_IN_MEMORY * self._plan.profile.refit.chunk_bytes,
                                  parent=self._folder.absolute() if len(self._plan.layout.hosts) > 1 else None)
        self._parts = self._assembled(self._stop_token_ids())
        async with asyncio.TaskGroup() as tasks:
            watchdog = None if self._plan.modelled else tasks.create_task(self._watch(), name="watchdog")
            try:
                await self._parts.start()
                result = await self._perform(self._parts, self._transport.path)
            finally:
                if self._busy is not None:
                    await self._busy.pool.close()
            if watchdog is not None:
                watchdog.cancel()
        return result

    async def _watch(self) -> None:
        """Look out for stalls. Nobody does in a simulation: it stands still by its model, and what waits there for ever
        is found when no timer is left."""
        await watch(self._recorder, self._clock, self._plan.profile.limits.stall_report_s, self._waiting, self._logger)

    def _stop_token_ids(self) -> tuple[int, ...]:
        if self._plan.parts[Role.GENERATOR].descriptor.policy is not None:
            return ()
        policy = self._plan.profile.policy
        chat_format = ChatFormat(self._plan.checkpoint.checkpoint, enable_thinking=policy.enable_thinking,
                                 tool_parser=policy.tool_parser)
        return tuple(chat_format.stop_ids)

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
                stops.listen(self._stop, self._end_soon)
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
            self._work = asyncio.create_task(self._work_parts(), name="run")
            if self._stopped:
                self._work.cancel()
            await self._unless_abandoned(self._work)
            status, sha256 = self._work.result()
            if status is Status.INTERRUPTED:
                error = Interrupted("the run was told to end and did so after a step", hint=self._goes_on())
        except BaseException as raised:
            if self._stopped or isinstance(raised, asyncio.CancelledError):
                self._logger.info("interrupted", exc_info=raised)
                status = Status.INTERRUPTED
                error = Interrupted("the run was interrupted", hint=self._goes_on())
            else:
                error = self._explain(first_error(raised))
                await self._failed(error)
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

    def _end_soon(self) -> None:
        """Called once, for SIGUSR1."""
        over = self._work is not None and self._work.done()
        if not over and not self._signals and not self._ends_soon():
            self._stop()

    async def _unless_abandoned(self, task: asyncio.Task[Any]) -> None:
        """Wait until the task is done, or the user will not wait any more."""
        abandoned = asyncio.create_task(self._abandoned.wait(), name="signal")
        try:
            await asyncio.wait([task, abandoned], return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandoned.cancel()
            task.cancel()

    def _announce(self) -> None:
        attempt = self._attempt
        for event in attempt.history:
            self._tally.add(event)
        opening = self._opening()
        self._observers.run_started(RunFacts(attempt.run, self._folder, dict(self._plan.resolved), opening.scored,
                                             attempt.history))
        self._recorder.emit(opening.kind, at_s=0.0, **opening.data,
                            provenance_sha256=software_sha256(software_of(self._plan)))
        self._recorder.emit(Kind.PHASE, at_s=0.0, phase=Phase.STARTUP.value)
        if opening.alarm is not None:
            self._recorder.alarm(*opening.alarm)

    async def _waiting(self) -> dict[str, Any]:
        assert self._parts is not None
        waiting: dict[str, Any] = {"phase": self._recorder.phase_now.value}
        if self._busy is not None:
            waiting |= {"prompts": self._busy.missing(), "rollouts": await self._busy.pool.waiting(),
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
        error.hint = "; ".join([*filter(None, [error.hint]), f"after that, {self._goes_on()}"])
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


def _journal(attempt: Attempt) -> Journal:
    """The journal, locked; RunFolderError where it does not hold the events that were read when planning."""
    journal = Journal(attempt.records)
    if journal.next_seq != attempt.written:
        journal.close()
        raise RunFolderError(f"{attempt.folder} went on while it was looked at: its journal holds {journal.next_seq} "
                             f"events now, not {attempt.written}", hint="look at it again")
    return journal
