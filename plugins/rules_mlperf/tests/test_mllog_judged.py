"""What ``check`` hears about a log that anybody wrote."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf import judged
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.judged import judge_path
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.official import missing
from grpo_bench_rules_mlperf.training_6_1 import RULES
from hypothesis import HealthCheck, given, settings, strategies as st

from grpo_bench.contract import Finding, Status

needs_checker = pytest.mark.skipif(bool(missing(RULES)), reason=missing(RULES))
PASSES = "mlperf-logging 4.1.68 with warnings as errors passes it"


def written(file: Path, log: list[Line], before: str = "") -> Path:
    file.write_text("".join(f"{before}{line}\n" for line in log))
    return file


def found(path: Path) -> dict[str, Finding]:
    return {finding.rule: finding for finding in judge_path(path) or ()}


def bad(path: Path) -> set[str]:
    return {rule for rule, finding in found(path).items() if not finding.ok}


@pytest.fixture(scope="module")
def good(make_deferred) -> list[Line]:
    return [parse(line) for line in lines(make_deferred([160, 180]).events, MllogConfig())]


@pytest.fixture(scope="module")
def older(make_benchmark) -> list[Line]:
    """As the published logs are: 256 tasks, evaluated in turns with training, and fewer keys."""
    run = make_benchmark([177], tasks={"train": {"available": 685}, "held-out": {"available": 256}}, of=256)
    return [line for text in lines(run.events, MllogConfig())
            if (line := parse(text)).key != "config_filename" and "precision" not in line.key]


@needs_checker
def test_a_good_log(good: list[Line], tmp_path: Path) -> None:
    rules = found(written(tmp_path / "log", good))
    assert rules.keys() == {"official checker", "audit", "score", "reference convergence", "official RCP checker"}
    assert all(finding.ok for finding in rules.values())
    assert rules["official checker"].message == PASSES
    assert rules["score"].message == "191.750 s (3.196 min) from run_start to run_stop"
    assert rules["official RCP checker"].message.endswith("passes three runs like this one: RCP found")


@needs_checker
def test_what_a_launcher_writes_around_it_does_no_harm(good: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path / "slurm.out", good, before="12: [rank 0] ")
    file.write_bytes(b"\xff\xfe node 12 is up\n" + file.read_bytes() + b"done :::\n")
    assert bad(file) == set()


@needs_checker
def test_a_log_of_an_older_version_is_one_finding(older: list[Line], tmp_path: Path) -> None:
    rules = found(written(tmp_path / "log", older))
    assert [rule for rule, finding in rules.items() if not finding.ok] == ["rules"]
    assert rules["rules"].message == (
        "has the shape of mlperf-training-6.1-draft (checker 4.1.59) and would pass there, not of mlperf-training-6.1 "
        "(checker 4.1.68): 256 validation tasks instead of 251, and nothing about config_filename, "
        "lowest_numerical_precision_in_attn, lowest_numerical_precision_in_comm, lowest_numerical_precision_in_linear")


@needs_checker
@pytest.mark.parametrize(("key", "value", "refused"), [
    ("opt_name", "sgd", "opt_name: v['value'] == 'adamw'"), ("eval_samples", 255, "eval_samples"),
    ("tensor_parallelism", 0, "tensor_parallelism")])
def test_one_that_has_other_faults_as_well_is_not(older: list[Line], tmp_path: Path, key: str, value: Any,
                                                  refused: str) -> None:
    log = [replace(line, value=value) if line.key == key else line for line in older]
    rules = found(written(tmp_path / "log", log))
    assert "rules" not in rules and refused in rules["official checker"].message


@needs_checker
def test_what_the_run_says_of_itself_counts(good: list[Line], tmp_path: Path) -> None:
    log = [replace(line, value=False, metadata={"reasons": ["trainer 'm' is a stand-in"]}) if line.key == "scored"
           else line for line in good]
    rules = found(written(tmp_path / "log", log))
    assert (rules["scored"].ok, rules["scored"].message) == (False, "trainer 'm' is a stand-in")
    assert bad(tmp_path / "log") == {"scored"}


@needs_checker
@pytest.mark.parametrize(("prompts", "says"), [(17, "the median of three runs is as fast, they will be refused"),
                                               (72, "knows no run of the reference above batch 1024")])
def test_batches_at_which_runs_will_be_refused(good: list[Line], tmp_path: Path, prompts: int, says: str) -> None:
    """A single run cannot be: that is said, and holds against the three of a submission only."""
    batch = prompts * 16
    first = RULES.first_validation(batch)
    values = {"global_batch_size": batch, "num_prompts_per_step": prompts,
              "opt_base_learning_rate": RULES.learning_rate(batch), "opt_end_learning_rate": RULES.learning_rate(batch),
              "opt_gradient_clip_norm": RULES.clip_norm(batch)}
    log = [replace(line, value=values.get(line.key, line.value), metadata={
        **line.metadata, **({"samples_count": batch * (line.metadata["samples_count"] // 256 - 19 + first),
                             "step": line.metadata["step"] - 19 + first} if "samples_count" in line.metadata else {})})
        for line in good if line.metadata.get("step", 19) >= 19]
    log.insert(-4, replace(log[-3], key="block_stop", event_type="INTERVAL_END", value=None, metadata={}))
    rules = found(written(tmp_path / "log", log))
    assert says in rules["reference convergence"].message
    checker = rules["official RCP checker"]
    assert checker.ok and "refuses three runs like this one" in checker.message


def test_a_log_of_another_benchmark(good: list[Line], tmp_path: Path) -> None:
    log = [replace(line, value="flux1") if line.key == "submission_benchmark" else line for line in good]
    rules = found(written(tmp_path / "log", log))
    assert rules["benchmark"] == Finding("benchmark", False, "is 'flux1'; these rules are those of qwen35_397b_grpo")


def test_what_is_no_log_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("nothing of the kind\n")
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("notes", "empty", "pipe", "folder", "gone"):
        assert judge_path(tmp_path / name) is None


@needs_checker
def test_a_line_that_is_none(good: list[Line], tmp_path: Path) -> None:
    file = written(tmp_path / "log", good)
    file.write_text(file.read_text() + ":::MLLOG {\n")
    assert bad(file) == {"official checker", "mllog form"}


def test_without_the_official_checker_nothing_is_green(good: list[Line], tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged, "missing", lambda rules: "mlperf-logging 4.1.68 is not installed")
    finding = found(written(tmp_path / "log", good))["official checker"]
    assert (finding.ok, finding.unknown, finding.fix) == (False, True, "pip install mlperf-logging==4.1.68")
    assert bad(tmp_path / "log") == {"official checker"}


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | NUMBERS | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)
KEYS = ("seed", "global_batch_size", "eval_accuracy", "target_accuracy", "run_stop", "block_stop", "eval_samples",
        "submission_division", "scored", "tracked_stats", "config_filename")


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(KEYS), value=JSON, time_ms=st.none() | st.integers(0, 2**53 - 1),
       told=st.dictionaries(st.sampled_from(["samples_count", "step", "status", "reasons"]), JSON))
def test_no_value_breaks_it(good: list[Line], tmp_path: Path, key: str, value: Any, told: dict[str, Any],
                            time_ms: int | None) -> None:
    """The official checkers take what they take, so they are left out."""
    log = [replace(line, value=value, metadata={**line.metadata, **told}, time_ms=time_ms or line.time_ms)
           if line.key == key else line for line in good]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judged, "missing", lambda rules: "it is left out")
        assert all(finding.message for finding in judge_path(written(tmp_path / "log", log)) or ())


@needs_checker
def test_a_run_that_missed_its_target(make_deferred, tmp_path: Path) -> None:
    events = make_deferred([100], status=Status.TARGET_MISSED, more=0).events
    file = written(tmp_path / "log", [parse(line) for line in lines(events, MllogConfig())])
    assert bad(file) == {"official checker"}
    assert "reference convergence" not in found(file)
