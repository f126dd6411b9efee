"""Deferred evaluations of what is damaged or was tampered with, and with parts that fail: what is not whole is named
before anything starts, what was evaluated stays, and nothing is evaluated twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from grpo_bench.cli import main
from grpo_bench.contract import Kind, RunFolderError, Status, TrainBatch, UpdateStats, canonical
from grpo_bench.engine import alone, conduct, make_folder, prepare, prepare_evaluation, run_virtual
from grpo_bench.observers import read_trajectories
from grpo_bench_mock.learner import MockTrainer

from .deferring import FAILS_THEN_PASSES, evaluated, of, of_evaluation, plan_of, trained, values, whole
from .deferring import software as software

def damage(run: Path, step: int, change: Callable[[Path], Any]) -> None:
    change(run / "checkpoints" / f"weights-{step:05d}")


def altered(folder: Path) -> None:
    (folder / "trainer" / "mock-weights.safetensors").write_bytes(b"\0" * 600)


def other_step(folder: Path) -> None:
    state = json.loads((folder / "weights.json").read_text())
    (folder / "weights.json").write_text(json.dumps({**state, "step": 4}))


def without_weights(folder: Path) -> None:
    (folder / "weights.json").unlink()


def no_json(folder: Path) -> None:
    (folder / "weights.json").write_text("{")


def a_key_less(folder: Path) -> None:
    state = json.loads((folder / "weights.json").read_text())
    state["probe"].pop("answers")
    (folder / "weights.json").write_text(json.dumps(state))


@pytest.mark.parametrize(("change", "says"), [
    (shutil.rmtree, "weights-00005 is missing"), (altered, "trainer is damaged: mock-weights.safetensors is not what"),
    (lambda folder: (folder / "trainer" / "more").touch(), "trainer is damaged: more does not belong"),
    (lambda folder: (folder / "trainer" / "config.json").unlink(), "trainer is damaged: config.json is missing"),
    (other_step, "weights-00005 holds the weights of run"), (without_weights, "weights.json is damaged"),
    (no_json, "weights.json is damaged"), (a_key_less, "its probe lacks answers"),
])
def test_a_series_that_is_not_whole_is_named_before_anything_starts(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], Any], says: str) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    damage(run, 5, change)
    assert main(["eval", str(run)]) == 2
    error = capsys.readouterr().err
    assert "the series of weights is not whole" in error and says in error and "weights-00005" in error
    assert not (run / "eval").exists()


def test_all_gaps_are_named_at_once(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    for step in (3, 6):
        damage(run, step, shutil.rmtree)
    with pytest.raises(RunFolderError, match=r"weights-00003 is missing\n.*weights-00006 is missing"):
        prepare_evaluation(run)


def test_weights_of_another_run_are_no_part_of_the_series(tmp_path: Path) -> None:
    run, other = trained(tmp_path / "run", *FAILS_THEN_PASSES), trained(tmp_path / "other", *FAILS_THEN_PASSES)
    damage(run, 4, shutil.rmtree)
    shutil.copytree(other / "checkpoints" / "weights-00004", run / "checkpoints" / "weights-00004")
    state = json.loads((run / "checkpoints" / "weights-00004" / "weights.json").read_text())
    (run / "checkpoints" / "weights-00004" / "weights.json").write_text(json.dumps({**state, "run": "another"}))
    with pytest.raises(RunFolderError, match="holds the weights of run another, step 4"):
        prepare_evaluation(run)


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    (run / "eval").touch()
    assert main(["eval", str(run)]) == 2
    assert "eval: File exists" in capsys.readouterr().err


def test_what_is_evaluated_may_go(tmp_path: Path) -> None:
    run = interrupted_after(trained(tmp_path, *FAILS_THEN_PASSES), evaluations=1)
    damage(run, 3, shutil.rmtree)
    assert evaluated(run).status is Status.TARGET_MET


def interrupted_after(run: Path, *, evaluations: int) -> Path:
    """The run with an evaluation that was cut off once so many validations were recorded: a copy of its journal."""
    copy = Path(shutil.copytree(run, run.parent / f"{run.name}-whole"))
    evaluated(copy)
    lines = (copy / "eval" / "events.jsonl").read_bytes().splitlines(keepends=True)
    ends = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == Kind.VALIDATION]
    (run / "eval").mkdir()
    (run / "eval" / "events.jsonl").write_bytes(b"".join(lines[:ends[evaluations - 1] + 5]) + lines[-1][:30])
    shutil.copytree(copy / "trajectories", run / "trajectories", dirs_exist_ok=True)
    return run


@pytest.mark.parametrize("done", [1, 2])
def test_an_evaluation_that_was_cut_off_goes_on_where_it_was(tmp_path: Path, done: int) -> None:
    run = interrupted_after(trained(tmp_path, *FAILS_THEN_PASSES), evaluations=done)
    outcome = evaluated(run)
    assert (outcome.status, outcome.summary["steps"]) == (Status.TARGET_MET, 5)
    assert outcome.summary["evaluation"]["attempts"] == 2
    events = of_evaluation(run)
    (resumed,) = of(events, Kind.RESUMED)
    assert (resumed.data["attempt"], resumed.data["from_step"], resumed.data["forced"]) == (2, 2 + done, [])
    assert [event.step for event in of(events[resumed.seq:], Kind.REFIT)] == list(range(3 + done, 6))
    counted = of(canonical(whole(run)), Kind.VALIDATION)
    assert [event.step for event in counted] == [3, 4, 5]
    for step in (3, 4, 5):
        rollouts = read_trajectories(run / "trajectories" / f"validation-{step:05d}.jsonl")
        assert len(rollouts) == len({rollout.rollout_id for rollout in rollouts}) == 24
    assert (run / "eval" / "provenance-2.json").is_file()


def test_settings_that_are_set_anew_on_the_way_are_recorded(tmp_path: Path) -> None:
    run = interrupted_after(trained(tmp_path, *FAILS_THEN_PASSES), evaluations=1)
    evaluated(run, overrides=["limits.refit_s=77"])
    (resumed,) = of(of_evaluation(run), Kind.RESUMED)
    assert resumed.data["settings"]["limits"]["refit_s"] == 77


def test_where_the_verdict_was_recorded_but_not_the_end_nothing_starts(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    evaluated(run)
    journal = run / "eval" / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    end = next(number for number, line in enumerate(lines) if b'"target_met":true' in line)
    journal.write_bytes(b"".join(lines[:end + 1]))
    assert evaluated(run).status is Status.TARGET_MET
    later = of_evaluation(run)[end + 1:]
    assert [event.kind for event in later] == [Kind.RESUMED, Kind.PHASE, Kind.PHASE, Kind.RUN_ENDED]


def test_a_training_that_was_changed_since_is_an_error(tmp_path: Path) -> None:
    run = interrupted_after(trained(tmp_path, *FAILS_THEN_PASSES), evaluations=1)
    journal = run / "events.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"reward":0.0', b'"reward":1.0', 1))
    before = (run / "eval" / "events.jsonl").read_bytes()
    with pytest.raises(RunFolderError, match="evaluates another training"):
        prepare_evaluation(run)
    assert (run / "eval" / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("kind", ["wrong", "nan"])
@pytest.mark.parametrize("growth", [False, True])
def test_weights_that_did_not_arrive_are_caught_by_the_probe(tmp_path: Path, kind: str, growth: bool) -> None:
    bounds = ("refit.probe_bound=off", "refit.probe_growth=1.5") if growth else ()
    run = trained(tmp_path, *FAILS_THEN_PASSES, "trainer.learning_rate=8.0", *bounds)
    fault = f'generator.faults=[{{at = "receive", kind = "{kind}", step = 4}}]'
    outcome = evaluated(run, overrides=[fault])
    assert outcome.status is Status.FAILED
    line = str(outcome.error)
    assert "log-probabilities" in line and "version 4" in line and f"grpo-bench eval {run}" in line
    events = of_evaluation(run)
    assert (events[-1].data["status"], list(values(events))) == ("failed", [3])
    assert evaluated(run).status is Status.TARGET_MET
    assert list(values(canonical(whole(run)))) == [3, 4, 5]


@pytest.mark.parametrize("ended_at", ["2030-01-01T00:00:00", "just now"])
def test_an_update_that_ended_at_no_moment_ends_the_training(tmp_path: Path, monkeypatch: Any, ended_at: str) -> None:
    update = MockTrainer.update

    async def untimed(self: MockTrainer, batch: TrainBatch) -> UpdateStats:
        return replace(await update(self, batch), ended_at=ended_at)

    monkeypatch.setattr(MockTrainer, "update", untimed)
    plan = plan_of(tmp_path)
    run = make_folder(plan, tmp_path / "runs", datetime.now(UTC))
    outcome = run_virtual(lambda clock: conduct(plan, run, clock))
    assert outcome.status is Status.FAILED and "trainer" in str(outcome.error)
    assert f"the update ended at '{ended_at}', which should be a time" in str(outcome.error)


def test_weights_from_a_disk_may_take_as_long_as_a_checkpoint(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    slow = ["generator.receive_s=30", "limits.refit_s=10"]
    outcome = evaluated(run, overrides=[*slow, "limits.checkpoint_s=20"])
    assert outcome.status is Status.FAILED and "not finished in time" in str(outcome.error)
    assert evaluated(run, overrides=[*slow, "limits.checkpoint_s=40"]).status is Status.TARGET_MET


def test_rollouts_that_did_not_end_normally_beyond_the_limit_fail_it(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    fault = 'agent.faults=[{at = "run", kind = "raise", task = "mock-heldout-0003"}]'
    outcome = evaluated(run, overrides=[fault, "limits.max_failed_share=0.0"])
    assert outcome.status is Status.FAILED and "limits.max_failed_share" in str(outcome.error)
    assert not values(of_evaluation(run))
    assert evaluated(run).status is Status.TARGET_MET


def test_an_engine_that_breaks_down_is_started_again_and_gets_the_same_weights(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    outcome = evaluated(run, overrides=['generator.faults=[{at = "generate", kind = "break", call = 60}]'])
    assert outcome.status is Status.TARGET_MET
    events = of_evaluation(run)
    assert [event.data["name"] for event in of(events, Kind.ALARM)] == ["engine_lost"]
    assert [event.data["version"] for event in of(events, Kind.REFIT)] == [3, 4, 5, 5]


def test_a_run_without_full_checkpoints_is_not_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    assert main(["resume", str(run)]) == 2
    assert f"grpo-bench eval {run} evaluates it" in capsys.readouterr().err
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-30]))
    for verb in ("resume", "eval"):
        assert main([verb, str(run)]) == 2
        assert "start a new run" in capsys.readouterr().err


def test_weights_that_a_resumption_would_need_have_to_be_there(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "checkpoint.period=5")
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-6]))
    prepare(run)
    damage(run, 6, shutil.rmtree)
    prepare(run)
    damage(run, 4, shutil.rmtree)
    with pytest.raises(RunFolderError, match="weights-00004 is missing") as raised:
        prepare(run)
    assert "step-00005" in raised.value.hint


def test_one_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    with alone(run):
        assert main(["eval", str(run)]) == 2
        assert "is in use by another process" in capsys.readouterr().err
    assert main(["eval", str(run)]) == 0
