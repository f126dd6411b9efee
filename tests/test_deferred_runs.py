"""Runs whose evaluation is deferred: what is saved, what is evaluated, what that comes to, and by which command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpo_bench_mock
import pytest
from grpo_bench_mock.learner import MockTrainer

from grpo_bench.cli import main
from grpo_bench.contract import Kind, Missing, PlanError, RegistryError, RunFolderError, Status, canonical, timeless
from grpo_bench.engine import Verdict, conduct, make_folder, prepare, prepare_evaluation, run_virtual
from grpo_bench.observers import read_events, read_trajectories, summarise
from grpo_bench.registry import make_plan, resolve

from .deferring import (
    FAILS_THEN_PASSES, NEVER, SMALL, STEPS, evaluated, of, of_evaluation, plan_of, trained, values, whole,
)
from .deferring import software as software

INLINE = "validation.deferred=false"


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def sets(*overrides: str) -> list[str]:
    return [part for override in overrides for part in ("--set", override)]


def test_a_training_saves_the_weights_of_each_step_that_is_due_and_validates_none(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "checkpoint.keep=1")
    events = list(read_events(run))
    assert not of(events, Kind.VALIDATION)
    assert not [event for event in of(events, Kind.ROLLOUT) if event.data["purpose"] == "validation"]
    updates = {event.step: event.data["ended_at"] for event in of(events, Kind.UPDATE)}
    saved = [event.data for event in of(events, Kind.CHECKPOINT)]
    assert [(data["folder"], data["what"]) for data in saved] == [
        (f"weights-{step:05d}", "weights") for step in range(3, STEPS + 1)]
    assert [data["updated_at"] for data in saved] == [updates[step] for step in range(3, STEPS + 1)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [data["folder"] for data in saved]
    end = events[-1].data
    assert (end["status"], end["steps"], end["value"], end["time_to_target_s"]) == ("trained", STEPS, None, None)


def test_the_trainer_is_asked_for_no_further_log_probabilities(tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[int] = []
    real = MockTrainer.log_probabilities

    async def counted(self: Any, batch: Any, weights: Any) -> Any:
        asked.append(batch.rows)
        return await real(self, batch, weights)

    monkeypatch.setattr(MockTrainer, "log_probabilities", counted)
    trained(tmp_path / "deferred", *NEVER)
    deferred, asked = asked, []
    trained(tmp_path / "inline", *NEVER, INLINE)
    assert deferred == asked and len(asked) > STEPS


def test_the_last_weights_are_written_once(tmp_path: Path) -> None:
    due = trained(tmp_path / "due", "checkpoint.final=true")
    assert not (due / "checkpoints" / "final").exists()
    other = trained(tmp_path / "other", "checkpoint.final=true", "validation.period=4")
    assert sorted(path.name for path in (other / "checkpoints").iterdir()) == ["final", "weights-00004"]


def test_the_first_that_meets_the_target_ends_it_and_what_was_found_is_what_validating_at_once_finds(
        tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    outcome = evaluated(run)
    assert (outcome.status, outcome.error) == (Status.TARGET_MET, None)
    found = values(of_evaluation(run))
    inline = trained(tmp_path / "inline", *FAILS_THEN_PASSES, INLINE)
    assert list(found) == [3, 4, 5]
    assert found == values(list(read_events(inline)))
    for step in found:
        name = f"trajectories/validation-{step:05d}.jsonl"
        ours, theirs = ({rollout.rollout_id: (rollout.reward, rollout.sampled_tokens, rollout.versions)
                         for rollout in read_trajectories(folder / name)} for folder in (run, inline))
        assert ours == theirs and len(ours) == 24


def test_the_journal_of_an_evaluation_says_what_it_evaluates_and_how_it_ended(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "trainer.update_s=100", "environment.score_s=7")
    before = (run / "events.jsonl").read_bytes()
    evaluated(run)
    assert (run / "events.jsonl").read_bytes() == before
    events = of_evaluation(run)
    first = events[0]
    assert (first.kind, first.elapsed_s, first.step) == (Kind.EVALUATION_STARTED, 0.0, None)
    assert [item["step"] for item in first.data["checkpoints"]] == [3, 4, 5, 6]
    assert (first.data["metric"], first.data["target"], first.data["k"]) == ("pass_k", 0.7, 2)
    assert first.data["settings"] == json.loads((run / "profile.json").read_text())
    assert "trainer" not in first.data["placements"]
    phases = [event.data["phase"] for event in of(events, Kind.PHASE)]
    assert phases == ["startup", *3 * ["refit", "drain", "validation"], "shutdown"]
    assert [event.data["version"] for event in of(events, Kind.REFIT)] == [3, 4, 5]
    assert {event.data["transport"] for event in of(events, Kind.REFIT)} == {"hf_folder"}
    assert {event.data["probe_difference"] for event in of(events, Kind.REFIT)} == {0.0}
    assert [event.data["target_met"] for event in of(events, Kind.VALIDATION)] == [False, False, True]
    end = events[-1].data
    update = next(event for event in read_events(run) if (event.kind, event.step) == (Kind.UPDATE, 5))
    assert (end["status"], end["steps"], end["value"]) == ("target_met", 5, 0.75)
    assert end["time_to_target_s"] == pytest.approx(update.elapsed_s)
    assert sum(end["ledger"].values()) == pytest.approx(end["wall_s"]) == pytest.approx(3 * 7)
    summary = summarise(whole(run))
    assert (summary["status"], summary["steps"]) == ("target_met", 5)
    assert json.loads((run / "eval" / "provenance.json").read_text())["profile"] == "mock"


def test_a_generator_that_reads_no_folders_gets_the_tensors_sent(tmp_path: Path, monkeypatch: Any) -> None:
    read = trained(tmp_path / "read", *FAILS_THEN_PASSES)
    evaluated(read)
    known = grpo_bench_mock.generator
    narrow = replace(known, capabilities=replace(known.capabilities, receives=frozenset({"mock", "safetensors"})))
    monkeypatch.setattr(grpo_bench_mock, "generator", narrow)
    sent = trained(tmp_path / "sent", *FAILS_THEN_PASSES)
    evaluated(sent)
    assert {event.data["transport"] for event in of(of_evaluation(sent), Kind.REFIT)} == {"safetensors"}
    assert values(whole(sent)) == values(whole(read))


def test_where_none_meets_the_target_all_are_evaluated(tmp_path: Path) -> None:
    run = trained(tmp_path, *NEVER)
    assert evaluated(run).status is Status.TARGET_MISSED
    assert list(values(of_evaluation(run))) == [3, 4, 5, 6]
    end = of_evaluation(run)[-1].data
    assert (end["steps"], end["time_to_target_s"]) == (6, None)


def test_without_a_metric_all_are_evaluated_and_it_is_complete(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "validation.metric=off", "validation.target=off")
    assert evaluated(run).status is Status.COMPLETED
    assert list(values(of_evaluation(run))) == [3, 4, 5, 6]
    assert not any(event.data["target_met"] for event in of(of_evaluation(run), Kind.VALIDATION))


def test_a_ruleset_says_when_weights_are_due_and_when_the_target_is_met(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "ruleset.use=mock", "ruleset.period=5", "ruleset.target=0.9")
    assert evaluated(run).status is Status.TARGET_MET
    assert {step: found[0] for step, found in values(of_evaluation(run)).items()} == {5: 9, 6: 12}


def test_an_evaluation_that_has_ended_says_its_verdict_and_starts_nothing(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    met, missed = trained(tmp_path / "met", *FAILS_THEN_PASSES), trained(tmp_path / "missed", *NEVER)
    for run in (met, missed):
        evaluated(run)
    before = (met / "eval" / "events.jsonl").read_bytes()
    assert isinstance(prepare_evaluation(met), Verdict)
    assert command(capsys, "eval", str(met)) == (
        0, f"{met} has been evaluated: target met, pass@2 0.750 after step 5\n", "")
    code, out, _ = command(capsys, "eval", str(missed), "--json")
    assert (code, json.loads(out)["status"]) == (1, "target_missed")
    assert (met / "eval" / "events.jsonl").read_bytes() == before


def test_a_copied_folder_is_evaluated_where_it_lies(tmp_path: Path) -> None:
    run = trained(tmp_path / "here", *FAILS_THEN_PASSES)
    copy = Path(shutil.copytree(run, tmp_path / "there" / "copy"))
    shutil.rmtree(run)
    assert evaluated(copy).status is Status.TARGET_MET
    assert of_evaluation(copy)[0].data["run"] == run.name


def test_how_and_where_can_be_set_anew_and_is_recorded(tmp_path: Path) -> None:
    policy = make_plan(resolve("mock", cwd=tmp_path)).checkpoint.checkpoint
    moved = Path(shutil.copytree(policy, tmp_path / "policy"))
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    outcome = evaluated(run, overrides=(f"policy.checkpoint={moved}", "generator.start_s=1.0", "limits.refit_s=77"))
    assert outcome.status is Status.TARGET_MET
    settings = of_evaluation(run)[0].data["settings"]
    assert (settings["policy"]["checkpoint"], settings["limits"]["refit_s"]) == (str(moved), 77.0)
    assert of_evaluation(run)[2].elapsed_s == 1.0
    assert not of_evaluation(run)[0].data["forced"]


def test_where_the_policy_lies_elsewhere_the_message_says_how_to_say_so(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = make_plan(resolve("mock", cwd=tmp_path)).checkpoint.checkpoint
    before, after = (Path(shutil.copytree(policy, tmp_path / name)) for name in ("before", "after"))
    run = trained(tmp_path, *FAILS_THEN_PASSES, f"policy.checkpoint={before}")
    shutil.rmtree(before)
    code, _, error = command(capsys, "eval", str(run))
    assert code == 2 and str(before) in error and "--set policy.checkpoint=DIR" in error
    assert command(capsys, "eval", str(run), "--set", f"policy.checkpoint={after}")[0] == 0


@pytest.mark.parametrize(("override", "named"), [
    ("grpo.max_steps=9", "grpo.max_steps"), ("validation.target=0.1", "validation.target"),
    ("policy.max_context=4096", "policy.max_context"), ("seed=4", "seed"), ("ruleset.use=mock", "ruleset.use"),
    ("sampling.temperature=0.5", "sampling.temperature"), ("trainer.learning_rate=1.0", "trainer.learning_rate"),
    ("observers=[]", "observers"), ("policy=1", "policy"),
])
def test_what_was_trained_and_how_it_is_judged_stays(tmp_path: Path, override: str, named: str) -> None:
    with pytest.raises(RegistryError, match=f"--set {named}: an evaluation changes nothing") as raised:
        prepare_evaluation(tmp_path, overrides=["generator.token_s=0.0", override])
    assert "policy.checkpoint, generator.*" in raised.value.hint


def test_another_policy_or_other_tasks_are_an_error_that_names_them_and_can_be_forced(tmp_path: Path) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES)
    with pytest.raises(RunFolderError, match=r"tasks\.heldout") as raised:
        prepare_evaluation(run, overrides=["environment.heldout_tasks=11"])
    assert "--force" in raised.value.hint
    assert not (run / "eval").exists()
    assert evaluated(run, overrides=["environment.heldout_tasks=11"], force=True).error is None
    started = of_evaluation(run)[0].data
    assert any(line.startswith("tasks.heldout.count: was 12, is 11") for line in started["forced"])
    assert not started["scored"]
    assert any("its evaluation differs from its training: tasks.heldout.count" in why for why in started["unscored"])
    assert not summarise(whole(run))["scored"]


def test_other_software_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = trained(tmp_path)
    provenance = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**provenance, "python": "3.9"}))
    with pytest.raises(RunFolderError, match=r"python: was \"3\.9\", is"):
        prepare_evaluation(run)


def test_a_run_that_validated_while_it_trained_has_nothing_to_evaluate(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = command(capsys, "eval", str(trained(tmp_path, INLINE)))
    assert code == 2 and "validated while it trained" in error and "validation.deferred" in error
    code, _, error = command(capsys, "eval", str(tmp_path))
    assert code == 2 and "no folder of a run" in error


def test_run_evaluates_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = command(capsys, "run", "--profile", "mock", "--runs", str(tmp_path), "--json",
                               *sets(*SMALL, *FAILS_THEN_PASSES))
    (run,) = tmp_path.iterdir()
    summary = json.loads(out.splitlines()[-1])
    assert (code, error) == (0, "")
    assert len(out.splitlines()) == 1
    assert (summary["status"], summary["steps"], summary["value"]) == ("target_met", 5, 0.75)
    assert summary["evaluation"]["evaluated"] == 3
    events = of_evaluation(run)
    assert events[0].elapsed_s == 0.0 and events[-1].elapsed_s > 0
    assert not [event for event in events if event.kind == Kind.ALARM]
    assert summary["time_to_target_s"] < summary["wall_s"]


def test_its_exit_code_is_that_of_the_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "run", "--profile", "mock", "--runs", str(tmp_path), *sets(*SMALL, *NEVER))
    assert code == 1
    assert "trained after 6 steps" in out and "target missed" in out


def test_no_eval_leaves_it_for_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = command(capsys, "run", "--profile", "mock", "--runs", str(tmp_path), "--json", "--no-eval",
                           *sets(*SMALL, *FAILS_THEN_PASSES))
    (run,) = tmp_path.iterdir()
    assert (code, json.loads(out)["status"]) == (0, "trained")
    assert not (run / "eval").exists()
    code, out, _ = command(capsys, "eval", str(run), "--json")
    assert (code, json.loads(out)["status"]) == (0, "target_met")


def test_a_generator_that_takes_no_checkpoints_is_refused_when_it_is_planned(tmp_path: Path, monkeypatch: Any) -> None:
    known = grpo_bench_mock.generator
    narrow = replace(known, capabilities=replace(known.capabilities, receives=frozenset({"mock"})))
    monkeypatch.setattr(grpo_bench_mock, "generator", narrow)
    with pytest.raises(PlanError, match=r"validation\.deferred: a deferred evaluation takes weights from checkpoints"):
        plan_of(tmp_path)
    plan_of(tmp_path, INLINE)


def test_a_schedule_without_any_validation_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = command(capsys, "run", "--profile", "mock", "--runs", str(tmp_path / "runs"),
                             *sets(*SMALL, "validation.period=7", "validation.metric=off", "validation.target=off"))
    assert code == 2 and "nothing to evaluate" in error
    assert not (tmp_path / "runs").exists()


def test_no_trainer_is_asked_or_made_where_it_is_evaluated(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*_: Any) -> None:
        raise Missing("there is no machine for a trainer here")

    run = trained(tmp_path, *FAILS_THEN_PASSES)
    monkeypatch.setattr("grpo_bench_mock.learner.create", fail)
    monkeypatch.setattr("grpo_bench_mock.config.describe", fail)
    with pytest.raises(Missing):
        plan_of(tmp_path)
    assert evaluated(run).status is Status.TARGET_MET
    assert of_evaluation(run)[0].data["parts"]["trainer"]["facts"]["opt_name"] == "adamw"


def test_a_training_that_goes_on_is_evaluated_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, *FAILS_THEN_PASSES, "checkpoint.period=5")
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join(lines[:-6]))
    shutil.rmtree(run / "checkpoints" / "weights-00006")
    code, out, _ = command(capsys, "resume", str(run), "--json")
    summary = json.loads(out)
    assert (code, summary["status"], summary["attempts"], summary["steps"]) == (0, "target_met", 2, 5)


def test_full_checkpoints_of_a_deferred_run_are_gone_on_from(tmp_path: Path) -> None:
    full = (*FAILS_THEN_PASSES, "checkpoint.period=2", "checkpoint.keep=1")
    straight = trained(tmp_path / "straight", *full)
    plan = plan_of(tmp_path, *full)
    run = make_folder(plan, tmp_path / "runs", datetime.now(UTC))
    fault = plan_of(tmp_path, *full, 'trainer.faults=[{at = "update", kind = "raise", step = 6}]')
    outcome = run_virtual(lambda clock: conduct(fault, run, clock))
    assert outcome.status is Status.FAILED and "grpo-bench resume" in str(outcome.error)
    with pytest.raises(RunFolderError, match="has not come to its end"):
        prepare_evaluation(run)
    again, resumption = prepare(run, force=True)
    assert resumption is not None and resumption.from_step == 4
    done = run_virtual(lambda clock: conduct(again, run, clock, resumption=resumption))
    assert (done.status, done.error) == (Status.TRAINED, None)
    saved = [event.step for event in canonical(read_events(run))
             if event.kind == Kind.CHECKPOINT and event.data["what"] == "weights"]
    assert saved == [3, 4, 5, 6]
    assert evaluated(run, force=True).status is Status.TARGET_MET
    evaluated(straight)
    forced = {"scored", "unscored", "forced"}
    ours, theirs = ([(kind, step, {key: value for key, value in data.items() if key not in forced | {"settings"}})
                     for kind, step, data in timeless(of_evaluation(folder))] for folder in (run, straight))
    assert ours == theirs


LAPTOP = ("grpo.max_steps=3", "grpo.prompts_per_step=4", "grpo.generations_per_prompt=4", "validation.max_tasks=8",
          "validation.period=1", "validation.start_at=2", "validation.at_start=false", "validation.metric=off",
          "validation.target=off", "checkpoint.period=0")


def laptop(folder: Path, *overrides: str) -> tuple[Path, dict[str, Any]]:
    done = subprocess.run([sys.executable, "-m", "grpo_bench", "run", "--profile", "laptop", "--json", "--runs",
                           str(folder), *sets(*LAPTOP, *overrides)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = folder.iterdir()
    return run, json.loads(done.stdout.splitlines()[-1])


def test_of_a_real_policy_the_saved_weights_are_the_ones_that_trained(tmp_path: Path) -> None:
    """Equal to the bit: what each validation found, and what its rollouts said."""
    run, summary = laptop(tmp_path / "deferred", "validation.deferred=true")
    inline, expected = laptop(tmp_path / "inline", INLINE)
    assert json.loads((run / "profile.json").read_text())["deterministic"] is True
    assert summary["weights_sha256"] == expected["weights_sha256"]
    events = of_evaluation(run)
    assert list(values(events)) == [2, 3]
    assert values(events) == values(list(read_events(inline)))
    assert all(event.data["probe_difference"] < 1e-4 for event in of(events, Kind.REFIT))
    for step in (2, 3):
        name = f"trajectories/validation-{step:05d}.jsonl"
        ours, theirs = ({rollout.rollout_id: [sequence.ids.tolist() for sequence in rollout.sequences]
                         for rollout in read_trajectories(folder / name)} for folder in (run, inline))
        assert ours == theirs


@pytest.mark.parametrize("role", ["trainer", "generator"])
def test_weights_reach_a_generator_that_cannot_be_compared_and_that_is_said(
        tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str) -> None:
    small = [override for override in SMALL if not override.startswith(role)]
    code, _, error = command(capsys, "run", "--profile", "mock", "--runs", str(tmp_path), "--json",
                             *sets(*small, "grpo.max_steps=3", "validation.max_tasks=2", "validation.metric=off",
                                   "validation.target=off", "deterministic=false", f"{role}.use=torch"))
    assert code == 0, error
    (run,) = tmp_path.iterdir()
    events = of_evaluation(run)
    (refit,) = of(events, Kind.REFIT)
    (alarm,) = of(events, Kind.ALARM)
    assert refit.data["probe_difference"] is None and refit.data["bytes"] > 0
    assert alarm.data["name"] == "probe_not_compared" and "'torch'" in alarm.data["message"]
    assert list(values(events)) == [3]
