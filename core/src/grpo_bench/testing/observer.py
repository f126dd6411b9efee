"""What an observer owes: it takes whatever a run tells, and leaves everything but its own files as it was."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pluggy
import pytest

from ..contract import Event, Finding, Kind, Purpose, Role, RunFacts
from ..contract.codec import to_jsonable
from ..contract.observers import PROJECT, ObserverHooks
from ..observers.summary import summarise
from . import history
from .suite import Rig, Suite, demand
from .world import World


@dataclass
class ObserverRig(Rig):
    """An observer, made anew for each run that it watches."""

    def watch(self, folder: Path, events: Sequence[Event], before: Sequence[Event] = ()) -> Any:
        """Let a new observer see a run in ``folder``, in a later process where there were events ``before``; returns
        its hooks."""
        summary, settings = summarise([*before, *events]), [*before, *events][0].data["settings"]
        hooks = _registered(self.world.make(self.descriptor, self.config, None, run_folder=folder))
        hooks.run_started(run=RunFacts("20300101-000000-conformance-0", folder, settings, False, before))
        for event in events:
            hooks.event(event=event)
            if event.kind == Kind.GROUP:
                hooks.group_finished(group=history.group(event.data["group_id"]))
            if event.kind == Kind.VALIDATION:
                groups = [history.group(number, Purpose.VALIDATION) for number in range(history.TASKS)]
                hooks.validated(report=history.validation(event.step or 0), groups=groups)
        hooks.run_ended(summary=summary)
        return hooks

    def judge(self, folder: Path, events: Sequence[Event]) -> list[Finding]:
        """What ``check`` gets to hear: it asks an observer that saw nothing of the run."""
        hooks = _registered(self.world.make_to_ask(self.descriptor, self.config, run_folder=folder))
        return [item for found in hooks.check_run(folder=folder, events=events) for item in found]


def _registered(observer: object) -> Any:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(ObserverHooks)
    manager.register(observer, "observed")
    manager.check_pending()
    return manager.hook


class ObserverSuite(Suite):
    """Demands on observers."""

    role = Role.OBSERVER

    @asynccontextmanager
    async def open(self, world: World, rig: Rig) -> AsyncIterator[ObserverRig]:
        yield ObserverRig(**vars(rig))

    @demand
    async def test_it_listens(self, rig: ObserverRig) -> None:
        """At least one hook, and each with a name and arguments of the contract: a hook misspelt is never called."""
        hooks = rig.watch(rig.world.new_folder(), history.whole_run()[:1])
        assert any(getattr(hooks, name).get_hookimpls() for name in vars(ObserverHooks) if not name.startswith("_"))

    @demand
    async def test_it_takes_a_whole_run(self, rig: ObserverRig) -> None:
        """Every kind of event, groups, validations and the summary, without raising: one that raises is dropped, and
        what it was to write is missing."""
        rig.watch(rig.world.new_folder(), history.whole_run())

    @demand
    async def test_it_takes_a_run_that_fails(self, rig: ObserverRig) -> None:
        """An error, and a run that ends before anything happened."""
        rig.watch(rig.world.new_folder(), history.failed_run())
        rig.watch(rig.world.new_folder(), history.whole_run()[:1])

    @demand
    async def test_it_takes_a_run_that_goes_on(self, rig: ObserverRig) -> None:
        """Another process continues the run in the same folder; the events of earlier attempts come with its start."""
        folder, (first, second) = rig.world.new_folder(), history.resumed_run()
        rig.watch(folder, first)
        rig.watch(folder, second, before=first)

    @demand
    async def test_it_takes_a_deferred_evaluation(self, rig: ObserverRig) -> None:
        """Another process validates the weights that a training left behind; the training's events come with its start.
        The numbers of events begin anew there."""
        folder, (training, evaluation) = rig.world.new_folder(), history.deferred_run()
        rig.watch(folder, training)
        rig.watch(folder, evaluation, before=training)

    @demand
    async def test_it_takes_what_it_does_not_know(self, rig: ObserverRig) -> None:
        """Kinds and keys of a later version are no reason to raise."""
        rig.watch(rig.world.new_folder(), history.with_something_new(history.whole_run()))

    @demand
    async def test_it_changes_nothing(self, rig: ObserverRig) -> None:
        """Observers see the same objects, one after the other; none may alter them."""
        events = history.whole_run()
        before = json.dumps([to_jsonable(event) for event in events])
        rig.watch(rig.world.new_folder(), events)
        assert json.dumps([to_jsonable(event) for event in events]) == before

    @demand
    async def test_it_writes_into_the_runs_folder_only(self, rig: ObserverRig) -> None:
        """Whatever it leaves belongs to the run; working directory and home are the user's, and nobody tidies up the
        folder for temporary files."""
        here, home, temporary = (rig.world.new_folder() for _ in range(3))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(here)
            patch.setenv("HOME", str(home))
            patch.setenv("TMPDIR", str(temporary))
            patch.setattr(tempfile, "tempdir", None)
            rig.watch(rig.world.new_folder(), history.whole_run())
        for name, folder in (("working directory", here), ("home", home), ("temporary files", temporary)):
            assert not list(folder.iterdir()), f"left in the folder for {name}: {list(folder.iterdir())}"

    @demand
    async def test_its_findings_are_json(self, rig: ObserverRig) -> None:
        """``check_run`` judges what another object of it wrote, later and on any machine, and also a folder where
        nothing is left."""
        folder, events = rig.world.new_folder(), history.whole_run()
        hooks = rig.watch(folder, events)
        rig.needs(hooks.check_run.get_hookimpls(), "it does not implement check_run")
        for where in (folder, rig.world.new_folder()):
            for finding in rig.judge(where, events):
                assert isinstance(finding, Finding) and finding.rule and finding.message
                assert json.loads(json.dumps(asdict(finding))) == asdict(finding)
