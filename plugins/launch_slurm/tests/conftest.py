"""Fakes on PATH, plans of real profiles, and scripts made of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_bench.registry import Plan, resolve, survey

from .faking import Batch, Fakes, make_fakes

CLUSTER = ("fabric.use=ray", "hardware.use=cluster", "hardware.nodes=3", "hardware.gpus_per_node=0")


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fakes:
    """Slurm as the verb finds it on PATH."""
    found = make_fakes(tmp_path / "fakes")
    monkeypatch.setenv("PATH", found.path(os.environ["PATH"]))
    return found


@pytest.fixture(scope="session")
def plans(tmp_path_factory: pytest.TempPathFactory):
    """``plans("mock", "key=value", ...)``: a plan as a machine without built environments makes it."""
    made: dict[tuple[str, ...], Plan] = {}
    folder = tmp_path_factory.mktemp("plans")

    def plan(profile: str, *overrides: str) -> Plan:
        if (profile, *overrides) not in made:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("XDG_CACHE_HOME", str(folder))
                patch.delenv("GRPO_BENCH_TOPOLOGY", raising=False)
                made[profile, *overrides] = survey(resolve(profile, overrides=overrides, cwd=folder), 7)
        return made[profile, *overrides]

    return plan


@pytest.fixture
def batch(fakes: Fakes) -> Iterator[object]:
    """``batch(script, number=1)`` starts a batch script under the fakes."""
    started: list[Batch] = []

    def start(script: Path, *, number: int, restarts: int = 0) -> Batch:
        started.append(Batch(script, fakes, number=number, restarts=restarts))
        return started[-1]

    yield start
    for process in started:
        process.close()
