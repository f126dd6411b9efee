"""The observer: hears a run's events and writes ``mllog.txt`` when it is over, whole or not at all.

The log of an attempt that was interrupted or failed is written too, without an end; a later attempt replaces it. Kept
in memory are only the events that lines are made of: a few for each step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Finding, Kind, PluginContext, RunFacts, hookimpl, settings_of

from .audit import audit
from .config import MllogConfig
from .judged import official_finding
from .mllog import FILE, lines
from .official import PACKAGE, judge_log, missing
from .score import score_of
from .training_6_1 import RULES

_BULKY = frozenset({Kind.ROLLOUT, Kind.GROUP})


class MllogWriter:
    """Writes and vouches for a run's log."""

    def __init__(self, config: MllogConfig, folder: Path) -> None:
        self._config = config
        self._folder = folder
        self._events: list[Event] = []

    @hookimpl
    def run_started(self, run: RunFacts) -> None:
        self._events = [event for event in run.history if event.kind not in _BULKY]

    @hookimpl
    def event(self, event: Event) -> None:
        if event.kind not in _BULKY:
            self._events.append(event)

    @hookimpl
    def run_ended(self, summary: dict[str, Any]) -> None:
        _replace(self._folder / FILE, text(self._events, self._config))

    @hookimpl
    def check_run(self, folder: Path, events: Sequence[Event]) -> Sequence[Finding]:
        file = folder / FILE
        try:
            found = file.read_text("utf-8")
        except (OSError, ValueError) as error:
            return (Finding("mllog", False, f"{FILE} cannot be read: {error}"),)
        ruled = settings_of(events).get("ruleset") or {}
        strict = RULES if ruled.get("use") == RULES.name else None
        score = score_of(events)
        return (_same(found, text(events, self._config)), *audit(found, strict=strict),
                _official(file, strict=strict is not None), *(score.findings() if score is not None else ()))


def text(events: Sequence[Event], identity: MllogConfig) -> str:
    """The content of ``mllog.txt``."""
    return "".join(f"{line}\n" for line in lines(events, identity))


def _same(found: str, wanted: str) -> Finding:
    if found == wanted:
        return Finding("mllog", True, f"{FILE} is what the events say, in {len(wanted.splitlines())} lines")
    pairs = enumerate(zip_longest(found.splitlines(), wanted.splitlines()), 1)
    number = next((number for number, (one, other) in pairs if one != other), 0)
    return Finding("mllog", False, f"{FILE} is not what the events say, from line {number} on")


def _official(file: Path, *, strict: bool) -> Finding:
    """``strict``: the log is meant for these rules, so nothing may be refused. Else what the benchmark fixes may be."""
    why = missing(RULES)
    if why and not strict:
        return Finding("official checker", True, f"not asked: {why}")
    verdict = None if why else judge_log(file, RULES)
    if verdict is not None and not strict and not verdict.other and verdict.refused.keys() <= RULES.fixed_keys and (
            keys := ", ".join(sorted(verdict.refused))):
        return Finding("official checker", True, f"{PACKAGE} {RULES.checker} with warnings as errors refuses what the "
                                                 f"benchmark fixes and this run has otherwise: {keys}")
    return official_finding(verdict, why)


def _replace(file: Path, content: str) -> None:
    """Put ``content`` in the place of ``file`` at once and for good; what is there stays where that fails."""
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def create(context: PluginContext) -> MllogWriter:
    """The factory."""
    return MllogWriter(context.config, context.run_folder)
