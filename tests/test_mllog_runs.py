"""Whole runs as MLLOG: the benchmark's mock, a laptop's, one in two attempts; and what ``check`` says of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_mock.config import TrainerConfig as MockTrainerConfig
from grpo_bench_mock.config import describe as describe_mock
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.header import TRAINER_FACTS
from grpo_bench_rules_mlperf.mllog import lines, to_ms
from grpo_bench_rules_mlperf.score import score_of
from grpo_bench_trainer_torch.config import TorchTrainerConfig
from grpo_bench_trainer_torch.config import describe as describe_torch

from grpo_bench.cli import main
from grpo_bench.contract import Kind, LossSettings, Placement, PolicyFacts, Site, divided
from grpo_bench.engine import conduct, make_folder, prepare
from grpo_bench.engine.clock import LaterClock, run_real
from grpo_bench.observers import read_run, summarise
from grpo_bench.registry import make_plan, resolve

from . import deferring
from .deferring import software as software

CHECKER = "4.1.68"
SITE = Site(PolicyFacts(Path(), 1, 1), Placement(), None, {}, {}, LossSettings(), deterministic=False)
SHORT = ["grpo.max_steps=3", "grpo.prompts_per_step=2", "grpo.generations_per_prompt=4", "validation.max_tasks=4",
         "hardware.trainer=1", "hardware.generator=1", "environment.train_tasks=32"]


def checker() -> str:
    try:
        return version("mlperf-logging")
    except PackageNotFoundError:
        return ""


needs_checker = pytest.mark.skipif(checker() != CHECKER, reason=f"mlperf-logging {CHECKER} is not installed")


def official(file: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "6.1.0", "--werror",
               "--log_output", str(folder / "checker.log"), str(file)]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=120)


def run_through_the_cli(folder: Path, profile: str, *overrides: str) -> Path:
    sets = [word for override in overrides for word in ("--set", override)]
    command = [sys.executable, "-m", "grpo_bench", "run", "--profile", profile, "--runs", str(folder), "--json", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    return folder / json.loads(done.stdout)["run"]


def checked(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(run), "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(verdict: dict[str, Any]) -> set[tuple[str, str]]:
    return {(finding["by"], finding["rule"]) for finding in verdict["findings"] if not finding["ok"]}


def values(run: Path) -> dict[str, Any]:
    return {line["key"]: line for line in parsed((run / "mllog.txt").read_text())}


def test_our_trainers_say_all_that_a_log_needs() -> None:
    torch_trainer = TorchTrainerConfig(schedule="linear", decay_steps=9, min_learning_rate=1e-4, clip_norm=None)
    for facts in (describe_torch(torch_trainer, SITE), describe_mock(MockTrainerConfig(), SITE)):
        assert facts.keys() == set(TRAINER_FACTS)
        assert json.loads(json.dumps(facts)) == facts
    facts = describe_torch(torch_trainer, SITE)
    assert (facts["opt_base_learning_rate"], facts["opt_end_learning_rate"]) == (1e-3, 1e-4)
    assert (facts["opt_learning_rate_decay_schedule"], facts["opt_gradient_clip_norm"]) == ("linear", None)
    constant = describe_torch(TorchTrainerConfig(learning_rate=0.5, betas=(0.8, 0.9)), SITE)
    assert (constant["opt_end_learning_rate"], constant["opt_adamw_beta_2"]) == (0.5, 0.9)


def test_a_run_in_virtual_time_is_not_scored(virtual: Any) -> None:
    (started,) = virtual("grpo.max_steps=1", "validation.metric=off", "validation.target=off").of(Kind.RUN_STARTED)
    assert (started.data["scored"], started.data["unscored"][-1]) == (False, "its time was virtual")


@pytest.fixture(scope="module")
def mocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the benchmark's whole shape."""
    return run_through_the_cli(tmp_path_factory.mktemp("mocked"), "gb300-256-mock")


@needs_checker
def test_the_official_checker_passes_the_benchmarks_mock(mocked: Path, tmp_path: Path) -> None:
    done = official(mocked / "mllog.txt", tmp_path)
    assert (done.returncode, "SUCCESS" in done.stderr) == (0, True), done.stderr


def test_the_mock_has_the_benchmarks_shape_and_says_what_it_is(mocked: Path) -> None:
    training, evaluation = divided(read_run(mocked))
    assert not [event for event in training if event.kind == Kind.VALIDATION]
    validations = [event for event in evaluation if event.kind == Kind.VALIDATION]
    assert [event.step for event in validations] == list(range(18, 18 + len(validations)))
    assert {(event.data["tasks"], event.data["k"], sum(event.data["ends"].values())) for event in validations} == {
        (251, 4, 1004)}
    assert [event.data["passed"] >= 174 for event in validations] == [*[False] * (len(validations) - 1), True]
    assert len(validations) > 1, "a first validation that fails has to be in the log as well"
    log = values(mocked)
    assert (log["submission_org"]["value"], log["scored"]["value"]) == ("MOCK", False)
    assert "trainer 'mock' is a stand-in" in log["scored"]["metadata"]["reasons"]
    assert log["run_stop"]["metadata"]["status"] == "success"
    passing = 17 + len(validations)
    assert log["run_stop"]["metadata"]["samples_count"] == 256 * passing
    (update,) = [event for event in training if (event.kind, event.step) == (Kind.UPDATE, passing)]
    assert log["run_stop"]["time_ms"] == to_ms(update.data["ended_at"])
    steps = [event.step for event in training if event.kind == Kind.STEP]
    told = parsed((mocked / "mllog.txt").read_text())
    assert [line["metadata"]["step"] for line in told if line["key"] == "tracked_stats"][::2] == steps
    assert told[-1] == log["run_stop"]


def test_its_score_is_that_of_its_log_and_the_summarys(mocked: Path) -> None:
    events = list(read_run(mocked))
    score, log = score_of(events), values(mocked)
    assert score is not None and score.wrong == ()
    assert score.seconds == (log["run_stop"]["time_ms"] - log["run_start"]["time_ms"]) / 1000
    (setup,) = [item.seconds for item in score.outside if item.what == "set-up"]
    assert setup + score.seconds == pytest.approx(summarise(events)["time_to_target_s"], abs=0.05)
    assert sum(score.inside.values()) == pytest.approx(score.seconds, abs=0.05)


def test_it_is_no_result_even_where_the_checker_passes(mocked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, verdict = checked(mocked, capsys)
    assert (code, verdict["result"], verdict["summary"]["status"]) == (1, False, "target_met")
    assert refused(verdict) - {("observer mllog", "official checker")} == {("run", "scored")}
    assert (("observer mllog", "official checker") in refused(verdict)) == (checker() != CHECKER)
    assert main(["check", str(mocked)]) == 1
    text = capsys.readouterr().out
    assert text.startswith(f"not a result: {mocked.name}\n")
    assert "NO  run: scored: trainer 'mock' is a stand-in\n" in text
    assert "ok  observer mllog: mllog: mllog.txt is what the events say" in text
    assert re.search(r"ok  observer mllog: score: [0-9.]+ s \([0-9.]+ min\) from run_start to run_stop, success", text)


@needs_checker
def test_neither_is_its_log(mocked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(mocked / "mllog.txt"), str(mocked), "--json"]) == 1
    log, run = json.loads(capsys.readouterr().out)
    assert refused(log) == {("ruleset mlperf-training-6.1", "scored")}
    assert (log["path"], run["path"], run["run"]) == (str(mocked / "mllog.txt"), str(mocked), mocked.name)


def test_before_its_evaluation_it_has_no_end(mocked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / mocked.name
    shutil.copytree(mocked, run, ignore=shutil.ignore_patterns("trajectories", "checkpoints", "eval"))
    _, verdict = checked(run, capsys)
    assert {("run", "end"), ("observer mllog", "mllog")} <= refused(verdict)
    log = "".join(f"{line}\n" for line in lines(read_run(run), MllogConfig(org="MOCK")))
    assert '"block_stop"' in log and "eval_start" not in log and "run_stop" not in log


def test_an_evaluation_that_was_interrupted_leaves_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "registry.toml").write_text(
        'schema = 1\n[profiles.logged]\nextends = "mock"\nobservers = [{ use = "mllog" }]\n')
    run = deferring.trained(tmp_path, *deferring.FAILS_THEN_PASSES, profile="logged")
    assert not values(run).keys() & {"run_stop", "eval_start"}
    again = tmp_path / "again"
    shutil.copytree(run, again)
    deferring.evaluated(run)
    whole = parsed((run / "mllog.txt").read_text())
    deferring.evaluated(again)
    journal = again / "eval" / "events.jsonl"
    before = journal.read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(before) if '"kind":"validation","step":4' in line)
    journal.write_text("".join(before[:cut + 3]))
    (again / "mllog.txt").write_text("what an earlier attempt left")
    deferring.evaluated(again)
    assert '"resumed"' in journal.read_text()
    found = (again / "mllog.txt").read_text()
    assert untimed(found) == untimed((run / "mllog.txt").read_text())
    assert parsed(found)[-1] == whole[-1]
    assert (whole[-1]["key"], whole[-1]["metadata"]["step"]) == ("run_stop", 5)


def test_a_figure_made_better_shows(mocked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / mocked.name
    shutil.copytree(mocked, run, ignore=shutil.ignore_patterns("trajectories", "checkpoints"))
    spoil(run / "mllog.txt", '"submission_org", "value": "MOCK"', '"submission_org", "value": "ACME"')
    assert ("observer mllog", "mllog") in refused(checked(run, capsys)[1])
    spoil(run / "eval" / "events.jsonl", '"scored":false', '"scored":true')
    assert ("run", "scored") in refused(checked(run, capsys)[1])
    spoil(run / "events.jsonl", '"scored":false', '"scored":true')
    assert main(["check", str(run)]) == 2
    assert "evaluates another training" in capsys.readouterr().err


def spoil(file: Path, true: str, better: str) -> None:
    text = file.read_text()
    assert true in text
    file.write_text(text.replace(true, better))


def test_a_run_in_two_attempts_has_one_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = tmp_path / "registry.toml"
    registry.write_text('schema = 1\n[profiles.logged]\nextends = "mock"\nobservers = [{ use = "mllog" }]\n')
    small = ["grpo.max_steps=5", "grpo.prompts_per_step=2", "validation.period=2", "checkpoint.period=2"]
    plan = make_plan(resolve("logged", registry=registry, overrides=small, cwd=tmp_path))
    run = make_folder(plan, tmp_path / "runs", datetime.now(UTC))
    run_real(lambda clock: conduct(plan, run, LaterClock(clock)))
    whole, before = (run / "mllog.txt").read_text(), (run / "events.jsonl").read_text().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(before) if '"kind":"update","step":4' in line)
    (run / "events.jsonl").write_text("".join(before[:cut]))
    shutil.rmtree(run / "checkpoints" / "step-00004")
    assert ("observer mllog", "mllog") in refused(checked(run, capsys)[1])
    again, resumption = prepare(run)
    assert resumption is not None and resumption.from_step == 2
    run_real(lambda clock: conduct(again, run, LaterClock(clock), resumption=resumption))
    assert untimed((run / "mllog.txt").read_text()) == untimed(whole)
    assert starts((run / "mllog.txt").read_text()) == starts(whole)
    _, verdict = checked(run, capsys)
    assert refused(verdict) == {("run", "scored"), ("run", "end")}
    assert verdict["summary"]["attempts"] == 2


def parsed(log: str) -> list[dict[str, Any]]:
    return [json.loads(line.partition(" ")[2]) for line in log.splitlines()]


def starts(log: str) -> list[int]:
    return [line["time_ms"] for line in parsed(log) if line["key"] in ("init_start", "run_start")]


def untimed(log: str) -> list[Any]:
    return [(line["key"], line["metadata"].get("step"), line["metadata"].get("status"),
             None if "train_step_time" in str(line["value"]) else line["value"]) for line in parsed(log)]


@needs_checker
def test_of_a_laptop_the_checker_refuses_what_the_benchmark_fixes(tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    run = run_through_the_cli(tmp_path, "laptop", *SHORT)
    assert official(run / "mllog.txt", tmp_path).returncode == 1
    _, verdict = checked(run, capsys)
    findings = {(finding["by"], finding["rule"]): finding for finding in verdict["findings"]}
    asked = findings["observer mllog", "official checker"]
    assert asked["ok"]
    assert set(asked["message"].partition("otherwise: ")[2].split(", ")) == {
        "max_sequence_length", "eval_samples", "eval_accuracy", "opt_base_learning_rate", "opt_gradient_clip_norm",
        "opt_learning_rate_warmup_steps", "num_generations_per_prompt", "generation_validation_rollout_temperature",
        "generation_validation_rollout_top_p"}
    assert findings["observer mllog", "mllog"]["ok"]
    log = values(run)
    assert (log["submission_org"]["value"], log["submission_platform"]["value"]) == ("none", "laptop")
    assert (log["global_batch_size"]["value"], log["eval_samples"]["value"]) == (8, 4)
    assert (log["opt_name"]["value"], log["lowest_numerical_precision_in_linear"]["value"]) == ("adamw", "fp32")
