"""Deferred evaluations in virtual time: trained on the mock parts, then evaluated in a loop of its own."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind
from grpo_bench.engine import (
    Evaluation, Outcome, alone, conduct, conduct_evaluation, make_folder, prepare_evaluation, run_virtual,
)
from grpo_bench.observers import read_events, read_run
from grpo_bench.registry import make_plan, resolve

STEPS = 6
"""Of which 3 to 6 are evaluated."""
SMALL = (f"grpo.max_steps={STEPS}", "grpo.prompts_per_step=2", "grpo.generations_per_prompt=3", "validation.start_at=3",
         "validation.period=1", "validation.max_tasks=12", "validation.k=2", "validation.target=1.0",
         "generator.spread=0.0", "generator.look_share=0.0", "checkpoint.period=0", "validation.deferred=true")
FAILS_THEN_PASSES = ("generator.base_skill=-4.9", "trainer.skill_per_update=1.0", "validation.target=0.7")
"""The third checkpoint is the first that meets the target."""
NEVER = ("generator.base_skill=-9.0",)


def plan_of(folder: Path, *overrides: str, profile: str = "mock") -> Any:
    return make_plan(resolve(profile, overrides=(*SMALL, *overrides), cwd=folder), 0)


def trained(folder: Path, *overrides: str, profile: str = "mock") -> Path:
    """A run that has trained."""
    plan = plan_of(folder, *overrides, profile=profile)
    run = make_folder(plan, folder / "runs", datetime.now(UTC))
    outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    assert outcome.error is None
    return run


def evaluated(run: Path, *, overrides: Sequence[str] = (), force: bool = False) -> Outcome:
    """One attempt at its evaluation."""
    with alone(run):
        found = prepare_evaluation(run, overrides=overrides, force=force)
        assert isinstance(found, Evaluation)
        return run_virtual(lambda clock: conduct_evaluation(found, clock))


def of_evaluation(run: Path) -> list[Event]:
    return list(read_events(run / "eval" / "events.jsonl"))


def of(events: Sequence[Event], kind: Kind) -> list[Event]:
    return [event for event in events if event.kind == kind]


def values(events: Sequence[Event]) -> dict[int | None, Any]:
    """What the validations found, by step."""
    return {event.step: (event.data["passed"], event.data["metrics"], event.data["ends"])
            for event in of(events, Kind.VALIDATION)}


def whole(run: Path) -> list[Event]:
    return list(read_run(run))


@pytest.fixture(scope="module", autouse=True)
def software() -> Iterator[None]:
    """What is installed is hashed once for all these plans."""
    build: Any = importlib.import_module("grpo_bench.registry.build")
    lock = functools.cache(build.distribution_lock)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "distribution_lock", lambda names: lock(tuple(names)))
        yield
