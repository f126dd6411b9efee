"""Everyone who watches a run, behind one object.

The engine tells :class:`Observers` what happens; it tells the journal first, then the built-in observers and the
plugins, in that order, through pluggy. An observer that raises is named in one alarm, after the run's first event at
the earliest, and hears nothing more; the run goes on without it. The journal alone is different: a run that cannot be
recorded stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import pluggy

from ..contract import Boundary, Event, Group, Kind, PluginError, RunFacts, ValidationReport
from ..contract.observers import PROJECT, ObserverHooks
from .journal import Journal
from .progress import Progress
from .report import ReportWriter
from .trajectories import TrajectoryWriter

_PASSED_ON = (KeyboardInterrupt, asyncio.CancelledError)


class Observers:
    """All observers of one run, its ``journal`` among them.

    ``observers`` are those that plugins made, as (name, object). ``display`` ``progress`` shows the run, on stderr
    under ``json_output``. ``rollouts`` says whether rollouts are kept. ``alarm(name, message)`` is called where an
    observer fails.
    """

    def __init__(self, folder: Path, journal: Journal, *, alarm: Callable[[str, str], None], logger: Any,
                 observers: Iterable[tuple[str, object]] = (), display: Literal["progress", "quiet"] = "quiet",
                 json_output: bool = False, rollouts: bool = True) -> None:
        self._alarm = alarm
        self._logger = logger
        self._progress = Progress(json_output=json_output) if display == "progress" else None
        self._observers: dict[str, pluggy.PluginManager] = {}
        self._failed: list[tuple[str, str]] = []
        self._over = False
        self._trajectories = TrajectoryWriter(folder)
        if rollouts:
            self._add("trajectories", self._trajectories)
        for name, observer in observers:
            self._add(name, observer)
        self._add("report", ReportWriter(folder))
        if self._progress is not None:
            self._add("progress", self._progress)
        self.journal = journal

    def run_started(self, run: RunFacts) -> None:
        self._tell("run_started", alarms=False, run=run)

    def event(self, event: Event) -> None:
        """Record and show one event; raises only where it cannot be recorded."""
        self.journal.write(event)
        self._over = event.kind == Kind.RUN_ENDED
        self._tell("event", event=event)

    def group_finished(self, group: Group) -> None:
        self._tell("group_finished", group=group)

    def validated(self, report: ValidationReport, groups: list[Group]) -> None:
        self._tell("validated", report=report, groups=groups)

    def sync(self) -> None:
        """Wait until everything recorded so far is on the disk: the rollouts, then the events."""
        if "trajectories" in self._observers:
            try:
                self._trajectories.sync()
            except OSError as error:
                self._drop("trajectories", "sync", error)
                self._report_failed()
        self.journal.sync()

    def run_ended(self, summary: dict[str, Any]) -> None:
        """Call after the last event: the report is made from the journal now, then the summary is shown."""
        self.sync()
        self._tell("run_ended", summary=summary)

    def close(self) -> None:
        """Give the terminal back and close the journal; closing twice is fine."""
        try:
            if self._progress is not None:
                self._progress.close()
        finally:
            self.journal.close()

    def _add(self, name: str, observer: object) -> None:
        name = name if name not in self._observers else f"{name} #{len(self._observers)}"
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(ObserverHooks)
        try:
            manager.register(observer, name)
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(str(error), boundary=Boundary(plugin=name, role="observer"),
                              hint="hooks and their arguments are those of grpo_bench.contract.observers") from error
        self._observers[name] = manager

    def _tell(self, hook: str, *, alarms: bool = True, **what: Any) -> None:
        for name, manager in list(self._observers.items()):
            try:
                getattr(manager.hook, hook)(**what)
            except _PASSED_ON:
                raise
            except BaseException as error:
                self._drop(name, hook, error)
        if alarms:
            self._report_failed()

    def _report_failed(self) -> None:
        """Nothing is recorded after the last event: who fails then is in the log alone."""
        while self._failed and not self._over:
            self._alarm("observer_failed", "observer {} no longer watches: {}".format(*self._failed.pop(0)))

    def _drop(self, name: str, hook: str, error: BaseException) -> None:
        """Unregister at once, report when everybody else has been told."""
        del self._observers[name]
        self._logger.error("observer failed", observer=name, hook=hook, exc_info=error)
        self._failed.append((name, f"{hook} raised {type(error).__name__}: {error}"))
