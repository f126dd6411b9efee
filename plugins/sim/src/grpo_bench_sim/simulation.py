"""Simulated runs: the engine under virtual time, once for each replica."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from grpo_bench.contract import GrpoBenchError, Status
from grpo_bench.engine import VirtualDeadlock, conduct, make_folder, run_virtual
from grpo_bench.observers import read_events
from grpo_bench.registry import Plan

from .model import Model
from .reading import RunTimes, times_of
from .standing import Scenario, counted_step, stood_in


@dataclass(frozen=True, slots=True)
class Simulation:
    """Replicas of one plan. ``folders`` are their run folders, empty where they were not kept; ``counts`` is the first
    step with a validation due that is taken to meet the target; None where there is none, or no target."""

    plan: Plan
    model: Model
    scenario: Scenario
    counts: int | None
    runs: tuple[RunTimes, ...]
    folders: tuple[Path, ...]


def seeds_named(seeds: Sequence[int]) -> str:
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"


def simulate(plan: Plan, model: Model, scenario: Scenario, seeds: Sequence[int], keep: Path | None, *,
             told: Callable[[RunTimes], None] | None = None) -> Simulation:
    """Simulate ``plan`` under each of the seeds, with the run folders in ``keep``, named ``replica-I-seed-S``; None:
    not kept. ``told`` is called after each. A run that fails raises what it failed with: GrpoBenchError, Interrupted
    where the user stopped it."""
    counts = counted_step(plan, model, scenario)
    runs: list[RunTimes] = []
    folders: list[Path] = []
    with nullcontext(keep) if keep is not None else tempfile.TemporaryDirectory(prefix="grpo-bench-sim-") as place:
        for number, seed in enumerate(seeds):
            folder = _simulated(stood_in(_seeded(plan, seed), model, scenario), Path(place),
                                f"replica-{number}-seed-{seed}", kept=keep is not None)
            runs.append(times_of(read_events(folder), counts))
            folders.append(folder)
            if told is not None:
                told(runs[-1])
    return Simulation(plan, model, scenario, counts, tuple(runs), tuple(folders) if keep is not None else ())


def _seeded(plan: Plan, seed: int) -> Plan:
    return replace(plan, seed=seed, resolved={**plan.resolved, "seed": seed})


def _simulated(plan: Plan, place: Path, name: str, *, kept: bool) -> Path:
    """Run it; the folder, which errors name where it is ``kept``."""
    run = make_folder(plan, place, datetime.now(UTC)).rename(place / name)
    try:
        with _uncollected():
            outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    except VirtualDeadlock as error:
        raise GrpoBenchError(f"the simulated run hangs: {error}", hint=_place(run, kept)) from error
    if (error := outcome.error) is not None:
        if outcome.status is Status.FAILED:
            error.message = f"the simulated run fails: {error.message}"
            said = error.hint if kept or str(run) not in error.hint else ""
            error.hint = "; ".join(filter(None, [said, _place(run, kept)]))
        raise error
    return run


def _place(run: Path, kept: bool) -> str:
    return f"grpo-bench report {run} shows it" if kept else ""


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles of garbage: a run makes few, and the search takes a sixth of its time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
