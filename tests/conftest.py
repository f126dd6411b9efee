"""Whole runs on the virtual clock: the real engine with the mock plugins, an hour of modelled time in seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Event, timeless
from grpo_bench.engine import Outcome, conduct, make_folder, run_virtual
from grpo_bench.observers import read_events
from grpo_bench.registry import make_plan, resolve

from .children import STARTED


@dataclass(frozen=True)
class Finished:
    """A run that is over: how it ended and all its events."""

    outcome: Outcome
    events: list[Event]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def timeless(self) -> list[tuple[str, int | None, Mapping[str, Any]]]:
        """What does not depend on a clock."""
        return timeless(self.events)


@pytest.fixture(autouse=True)
def no_child_outlives_its_test() -> Iterator[None]:
    yield
    while STARTED:
        with (child := STARTED.pop()).process:  # as __exit__ closes its pipes and waits for it
            child.process.kill()


@pytest.fixture
def virtual(tmp_path: Path):
    """``virtual("key=value", ...)`` runs profile ``mock`` with these overrides, in virtual time."""

    def run(*overrides: str, seed: int = 0, profile: str = "mock", registry: Path | None = None) -> Finished:
        return run_mock(tmp_path, overrides, seed=seed, profile=profile, registry=registry)

    return run


def run_mock(folder: Path, overrides: Sequence[str], *, seed: int = 0, profile: str = "mock",
             registry: Path | None = None) -> Finished:
    plan = make_plan(resolve(profile, registry=registry, overrides=overrides, cwd=folder), seed)
    run = make_folder(plan, folder / "runs", datetime.now(UTC))
    outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    return Finished(outcome, list(read_events(run / "events.jsonl")))
