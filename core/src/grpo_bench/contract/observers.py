"""Lifecycle hooks, through pluggy. An observer is any object with some of these methods.

Observers see; they never steer. One that raises is reported once and unregistered; the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pluggy

from .roles import Finding
from .values import Event, Group, ValidationReport

PROJECT = "grpo_bench"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@dataclass(frozen=True)
class RunFacts:
    """What is known when a run starts: id, folder, the resolved profile (JSON data), whether it can be scored. In a
    later attempt ``history`` holds the events of the earlier ones; in a deferred evaluation, those of the training and
    of what was evaluated before."""

    run: str
    folder: Path
    profile: dict[str, Any]
    scored: bool
    history: Sequence[Event] = ()


class ObserverHooks:
    """The hooks."""

    @hookspec
    def run_started(self, run: RunFacts) -> None:
        """Once, before anything else of the run."""

    @hookspec
    def event(self, event: Event) -> None:
        """Every event, in order, from the engine's process."""

    @hookspec
    def group_finished(self, group: Group) -> None:
        """A training group whose rollouts have all ended."""

    @hookspec
    def validated(self, report: ValidationReport, groups: list[Group]) -> None:
        """A validation and its rollouts, one group per task."""

    @hookspec
    def run_ended(self, summary: dict[str, Any]) -> None:
        """Once, after everything else; ``summary`` is what ``--json`` prints."""

    @hookspec
    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        """Asked about a run that is over, on any machine: whether what this observer wrote into the run's folder is
        there, and is what the events of all attempts say."""
        return ()
