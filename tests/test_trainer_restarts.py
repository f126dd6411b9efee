"""Runs whose trainer loses a process: with ``limits.trainer_restarts`` they go on by themselves, as if resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.contract import Event, Kind, PlanError, Status, timeless
from grpo_bench.engine import conduct, make_folder, run_virtual
from grpo_bench.engine.assembly import Assembly
from grpo_bench.observers import read_events
from grpo_bench.registry import make_plan, resolve

from .children import Child, assert_gone, last_object, stepped

LAPTOP = {"trainer.workers": 2, "generator.use": "mock", "grpo.prompts_per_step": 2, "grpo.generations_per_prompt": 2,
          "grpo.max_steps": 4, "validation.metric": "off", "validation.target": "off", "validation.period": 100,
          "validation.at_start": "false", "checkpoint.period": 1, "limits.trainer_restarts": 1}


def started(folder: Path) -> Child:
    return Child(folder, LAPTOP, "laptop")


def trainers(child: Child) -> list[Any]:
    """The two processes of the trainer that was started last."""
    workers = sorted((int(name.partition(".")[0]), process) for name, process in child.workers().items())
    return [process for _, process in workers[:2]]


def of(events: Sequence[Event], kind: Kind) -> list[Event]:
    return [event for event in events if event.kind == kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """Weights and history of the run that lost nothing."""
    child = started(tmp_path_factory.mktemp("whole"))
    code, out, err = child.end()
    assert code == 0, err
    return last_object(out)["weights_sha256"], timeless(read_events(child.folder))


@pytest.mark.parametrize("phase", ["rollout", "update", "refit"])
def test_a_run_that_lost_a_process_of_its_trainer_goes_on_from_the_last_checkpoint(
        tmp_path: Path, whole: tuple[str, list[Any]], phase: str) -> None:
    child = started(tmp_path)
    child.until(lambda: stepped(child) and of(child.recorded(), Kind.PHASE)[-1].data["phase"] == phase)
    lost = trainers(child)
    os.kill(lost[1].pid, signal.SIGKILL)
    child.until(lambda: of(child.recorded(), Kind.RESUMED))
    assert_gone(lost, [])
    code, out, err = child.end()
    assert (code, last_object(out)["status"], last_object(out)["attempts"]) == (0, "completed", 2), err
    assert err == ""
    events = list(read_events(child.folder))
    at = next(number for number, event in enumerate(events) if event.kind == Kind.RESUMED)
    assert [event.kind for event in events[at - 1:at + 3]] == [Kind.RUN_ENDED, Kind.RESUMED, Kind.PHASE, Kind.ALARM]
    assert events[at - 1].data["status"] == "failed"
    resumed, alarm = events[at].data, events[at + 2].data
    assert alarm["name"] == "trainer_lost"
    assert "was ended by SIGKILL" in alarm["message"]
    assert alarm["message"].endswith(f"the run goes on from step {resumed['from_step']}, restart 1 of 1")
    assert (resumed["attempt"], resumed["forced"]) == (2, [])
    assert (child.folder / "provenance-2.json").is_file()
    assert events[at].elapsed_s < events[at - 1].elapsed_s
    assert (last_object(out)["weights_sha256"], timeless(events)) == whole


def test_beyond_the_limit_the_run_fails_and_can_be_resumed(tmp_path: Path) -> None:
    child = started(tmp_path)
    child.until(lambda: of(child.recorded(), Kind.BATCH))
    os.kill(trainers(child)[0].pid, signal.SIGKILL)
    child.until(lambda: of(child.recorded(), Kind.RESUMED))
    known = len(child.recorded())
    child.until(lambda: of(child.recorded()[known:], Kind.BATCH))
    os.kill(trainers(child)[0].pid, signal.SIGKILL)
    code, out, err = child.end()
    assert (code, last_object(out)["status"]) == (1, "failed")
    assert "was ended by SIGKILL" in err and f"grpo-bench resume {child.folder}" in err
    assert len(of(child.recorded(), Kind.RESUMED)) == 1
    code, out, err = Child(tmp_path, {}, "", verb=("resume", str(child.folder))).end()
    assert (code, last_object(out)["status"], last_object(out)["attempts"]) == (0, "completed", 3), err


def test_restarts_without_full_checkpoints_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"checkpoint.period = 0 none is written"):
        make_plan(resolve("mock", overrides=("limits.trainer_restarts=1", "checkpoint.period=0"), cwd=tmp_path))


@pytest.mark.parametrize(("restarts", "lost"), [(0, True), (1, True), (1, False)])
def test_what_another_part_saw_first_is_the_trainers_loss_where_a_process_of_it_has_ended(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int, lost: bool) -> None:
    async def asked(self: Assembly) -> bool:
        return lost

    monkeypatch.setattr(Assembly, "lost_trainer", asked)
    plan = make_plan(resolve("mock", overrides=(
        'generator.faults=[{at = "receive", kind = "raise", step = 2}]', "grpo.max_steps=5",
        f"limits.trainer_restarts={restarts}"), cwd=tmp_path))
    outcome = run_virtual(lambda clock: conduct(plan, make_folder(plan, tmp_path / "runs", datetime.now(UTC)), clock))
    assert outcome.status is Status.FAILED
    assert outcome.lost_trainer is (lost and restarts > 0)
