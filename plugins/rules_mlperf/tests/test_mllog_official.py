"""What the official checker says about our logs. It runs for real, as a library here and as its own command once."""

from __future__ import annotations

import csv
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.official import (
    Convergence, Verdict, judge_convergence, judge_log, judge_package, missing,
)
from grpo_bench_rules_mlperf.training_6_1 import RULES

from grpo_bench.contract import Status

pytestmark = pytest.mark.skipif(bool(missing(RULES)), reason=missing(RULES))


def written(folder: Path, log: list[Line]) -> Path:
    file = folder / "mllog.txt"
    file.write_text("".join(f"{line}\n" for line in log))
    return file


def judged(folder: Path, events: Any) -> Verdict:
    return judge_log(written(folder, [parse(line) for line in lines(events, MllogConfig())]), RULES)


@pytest.mark.parametrize("passed", [[174], [173, 160, 251]])
@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_benchmark_run_passes(make_benchmark, make_deferred, tmp_path: Path, passed: list[int],
                                division: str) -> None:
    for make in (make_benchmark, make_deferred):
        assert judged(tmp_path, make(passed, settings={"ruleset": {"division": division}}).events) == Verdict({})


def test_its_own_command_says_the_same(make_deferred, tmp_path: Path) -> None:
    file = written(tmp_path, [parse(line) for line in lines(make_deferred().events, MllogConfig())])
    command = [sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training", "--ruleset", "6.1.0",
               "--werror", "--log_output", str(tmp_path / "checker.log"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "SUCCESS" in done.stderr


def test_of_something_else_it_refuses_what_the_benchmark_fixes(make_laptop, tmp_path: Path) -> None:
    verdict = judged(tmp_path, make_laptop().events)
    assert verdict.other == ()
    assert verdict.refused.keys() == {
        "max_sequence_length", "eval_samples", "eval_accuracy", "opt_base_learning_rate", "opt_gradient_clip_norm",
        "opt_learning_rate_warmup_steps", "num_generations_per_prompt", "generation_validation_rollout_temperature",
        "generation_validation_rollout_top_p"}
    assert verdict.refused.keys() <= RULES.fixed_keys
    assert verdict.refused["max_sequence_length"] == "v['value'] == 65536"


def test_an_open_log_of_something_else(make_laptop, tmp_path: Path) -> None:
    settings = {"policy": {"checkpoint": "package:tiny/base", "max_context": 512}, "ruleset": {"division": "open"},
                "sampling": {"temperature": 1.0, "top_p": 1.0}}
    verdict = judged(tmp_path, make_laptop(more=settings).events)
    assert verdict.refused.keys() == {"max_sequence_length", "eval_samples", "eval_accuracy"}


def test_a_target_that_was_not_met_is_refused(make_benchmark, tmp_path: Path) -> None:
    verdict = judged(tmp_path, make_benchmark([173], status=Status.TARGET_MISSED).events)
    assert verdict == Verdict({"eval_accuracy": "never v['value'] > s['target_accuracy']"})


def test_a_log_without_an_end_is_refused(make_benchmark, tmp_path: Path) -> None:
    verdict = judged(tmp_path, make_benchmark([180], status=Status.FAILED).events)
    assert verdict.refused == {"run_stop": "Required EXACTLY_ONE occurrence of 'run_stop' but found 0"}


def test_what_a_trainer_does_not_say_is_refused(make_benchmark, tmp_path: Path) -> None:
    verdict = judged(tmp_path, make_benchmark(facts={"opt_name": "adamw"}).events)
    assert {"micro_batch_size", "tensor_parallelism", "gradient_accumulation_steps"} <= verdict.refused.keys()
    assert not verdict.refused.keys() <= RULES.fixed_keys


def test_what_breaks_the_checker_is_a_refusal(make_benchmark, tmp_path: Path) -> None:
    log = [parse(line) for line in lines(make_benchmark().events, MllogConfig())]
    unknown = [replace(line, value="no such") if line.key == "submission_benchmark" else line for line in log]
    verdict = judge_log(written(tmp_path, unknown), RULES)
    assert not verdict.passed
    assert "FileNotFoundError" in verdict.other[0]
    assert judge_log(written(tmp_path, log), RULES).passed


@pytest.mark.parametrize(("content", "says"), [
    ("", "No log lines detected"), (":::MLLOG {\n", "Log lines had parsing errors."), (":::MLLOG {}\n", "KeyError")])
def test_what_is_no_log_is_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "mllog.txt").write_text(content)
    assert any(says in message for message in judge_log(tmp_path / "mllog.txt", RULES).other)


def test_nothing_is_left_behind(make_laptop, make_deferred, tmp_path: Path, capfd: pytest.CaptureFixture[str],
                                monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level
    monkeypatch.chdir(tmp_path)
    judged(tmp_path, make_laptop().events)
    file = written(tmp_path, [parse(line) for line in lines(make_deferred().events, MllogConfig())])
    assert judge_convergence([file] * 3, RULES).passed
    assert judge_package(tmp_path, RULES) != ()
    assert (list(root.handlers), root.level) == before
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["mllog.txt"]


@pytest.mark.parametrize(("prompts", "step", "passes", "words"), [
    (16, 18, True, "RCP found"), (16, 17, False, "RCP found"), (17, 17, False, "RCP Interpolation"),
    (17, 18, True, "RCP Interpolation"), (32, 10, True, "RCP found"), (64, 7, True, "RCP found"),
    (54, 7, False, "RCP Interpolation"), (72, 6, False, "Missing RCP, please submit RCP with BS = 1152"),
    (8, 33, False, "Missing RCP, please submit RCP with BS = 128"),
    (8, 36, True, "RCP not found but slower convergence on smaller batch size")])
def test_convergence_against_the_reference(make_deferred, tmp_path: Path, prompts: int, step: int, passes: bool,
                                           words: str) -> None:
    """By batch and step; our own arithmetic comes to the same."""
    log = [parse(line) for line in lines(make_deferred([180]).events, MllogConfig())]
    count = prompts * 16 * step
    other = [replace(line, value=prompts * 16) if line.key == "global_batch_size" else line for line in log]
    other = [replace(line, metadata={**line.metadata, "samples_count": count}) if line.key == "eval_accuracy" else line
             for line in other]
    file = written(tmp_path, other)
    assert judge_convergence([file] * 3, RULES) == Convergence(passes, words)
    wanted = RULES.samples_to_converge(prompts * 16)
    assert (wanted is not None and count >= wanted) == passes


@pytest.mark.parametrize("reached", [True, False])
def test_one_of_three_runs_may_fail_to_converge(make_deferred, tmp_path: Path, reached: bool) -> None:
    good = written(tmp_path, [parse(line) for line in lines(make_deferred([180]).events, MllogConfig())])
    missed = tmp_path / "missed.txt"
    missed.write_text("\n".join(lines(make_deferred([100], status=Status.TARGET_MISSED).events, MllogConfig())))
    found = judge_convergence([good, missed, good if reached else missed], RULES)
    assert found == (Convergence(True, "RCP found") if reached else Convergence(False, "Insufficient convergence"))


def test_the_benchmarks_fixed_keys_are_those_it_checks(make_benchmark, tmp_path: Path) -> None:
    """Each is refused with another value, but the one that only our audit looks at; and each key that only has to be
    there passes with another."""
    log = [parse(line) for line in lines(make_benchmark([180]).events, MllogConfig())]
    fixed = {line.key for line in log} & RULES.fixed_keys
    assert fixed == RULES.fixed_keys
    for key in sorted(fixed - {"opt_end_learning_rate"}):
        other = [replace(line, value="other" if isinstance(line.value, str) else 0.3) if line.key == key else line
                 for line in log]
        assert key in judge_log(written(tmp_path, other), RULES).refused, key
    for key in ("submission_org", "submission_platform", "seed", "train_samples", "max_steps", "config_filename"):
        other = [replace(line, value="other") if line.key == key else line for line in log]
        assert judge_log(written(tmp_path, other), RULES).passed, key


def test_every_key_that_it_requires_is_there(make_benchmark) -> None:
    from mlperf_logging import compliance_checker

    folder = Path(compliance_checker.__file__).parent / f"training_{RULES.checker_ruleset}"
    found = {parse(line).key for line in lines(make_benchmark().events, MllogConfig())}
    names = ("common", "closed_common", f"closed_{RULES.benchmark}", "open_common", f"open_{RULES.benchmark}")
    required = {row[1].strip() for name in names for row in csv.reader(
        (folder / f"{name}.yaml").read_text().splitlines(), delimiter=":", skipinitialspace=True)
        if row and row[0].strip() == "NAME"}
    assert len(required) > 40
    assert required - found == {"epoch_start", "epoch_stop"}  # alternatives of block_start and block_stop
