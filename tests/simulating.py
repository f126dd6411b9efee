"""Folders of simulations: plans whose times are modelled, run on the mock parts in virtual time. Beside them one of the
same plan as it is."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Event, Kind
from grpo_bench.engine import Outcome, conduct, make_folder, run_virtual
from grpo_bench.observers import read_training
from grpo_bench.registry import make_plan, resolve

MODEL = "reference <r>: logs of 6 replicas"
SETTINGS = ("grpo.max_steps=3", "grpo.prompts_per_step=2", "grpo.generations_per_prompt=3", "validation.start_at=3",
            "validation.period=1", "validation.max_tasks=4", "validation.k=2", "validation.target=0.0",
            "generator.base_skill=-99.0", "generator.look_share=0.0", "trainer.update_s=40", "generator.token_s=0.5",
            "limits.request_s=3000", "checkpoint.period=0")
SAID = ("A simulation: nothing was computed, so there are no rewards, losses or accuracy, and whether the target is "
        f"met is assumed. Its times are from {MODEL}.")


@dataclass(frozen=True)
class Folder:
    path: Path
    outcome: Outcome

    @property
    def events(self) -> list[Event]:
        return list(read_training(self.path))

    def of(self, kind: Kind) -> list[dict[str, Any]]:
        return [dict(event.data) for event in self.events if event.kind == kind]


def made(place: Path, modelled: str, *overrides: str, **how: Any) -> Folder:
    plan = make_plan(resolve("mock", overrides=(*SETTINGS, *overrides), cwd=place), 0)
    plan = replace(plan, modelled=modelled, passes_at=4 if modelled else None, incomparable="nothing is compared")
    run = make_folder(plan, place / "runs", datetime.now(UTC))
    return Folder(run, run_virtual(lambda clock: conduct(plan, run, clock, **how)))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return made(tmp_path_factory.mktemp("simulated"), MODEL)


@pytest.fixture(scope="module")
def deferred(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return made(tmp_path_factory.mktemp("deferred"), MODEL, "validation.deferred=true", "grpo.max_steps=5")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return made(tmp_path_factory.mktemp("real"), "")


@pytest.fixture
def copy(tmp_path: Path) -> Any:
    return lambda folder: Path(shutil.copytree(folder.path, Path(mkdtemp(dir=tmp_path)) / folder.path.name))


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code and all that a verb says, on one line."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())
