"""The observer: when it writes, that it writes all or nothing, and what it says about a finished run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_rules_mlperf import judged, official, writer
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.training_6_1 import RULES
from grpo_bench_rules_mlperf.writer import MllogWriter

from grpo_bench.contract import Finding, RunFacts, Status

CONFIG = MllogConfig(org="ACME")


def watch(folder: Path, events: Any, history: Any = ()) -> MllogWriter:
    """Tell an observer a whole run."""
    observer = MllogWriter(CONFIG, folder)
    observer.run_started(RunFacts("r", folder, {}, True, history))
    for event in events:
        observer.event(event)
    observer.run_ended({})
    return observer


def findings(observer: MllogWriter, folder: Path, events: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in observer.check_run(folder, events)}


@pytest.fixture
def no_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "missing", lambda rules: "mlperf-logging is not installed")
    monkeypatch.setattr(judged, "missing", lambda rules: "mlperf-logging is not installed")


def test_the_file_is_what_the_events_say(make_benchmark, tmp_path: Path) -> None:
    events = make_benchmark().events
    watch(tmp_path, events)
    assert (tmp_path / "mllog.txt").read_text().splitlines() == lines(events, CONFIG)
    assert sorted(os.listdir(tmp_path)) == ["mllog.txt"]


def test_a_later_attempt_writes_the_whole_run(make_recording, tmp_path: Path) -> None:
    run = make_recording()
    run.step(1)
    run.checkpoint(1)
    run.end(Status.INTERRUPTED)
    first = len(run.events)
    watch(tmp_path, run.events)
    assert "run_stop" not in (tmp_path / "mllog.txt").read_text()
    run.resume()
    run.step(2)
    run.end(Status.TARGET_MISSED)
    watch(tmp_path, run.events[first:], history=tuple(run.events[:first]))
    assert (tmp_path / "mllog.txt").read_text().splitlines() == lines(run.events, CONFIG)
    assert "aborted" in (tmp_path / "mllog.txt").read_text()


def test_a_disk_that_refuses_leaves_what_was_there(make_benchmark, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mllog.txt").write_text("before")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        watch(tmp_path, make_benchmark().events)
    assert (tmp_path / "mllog.txt").read_text() == "before"
    assert os.listdir(tmp_path) == ["mllog.txt"]


def test_an_evaluation_replaces_the_log_of_its_training(make_deferred, tmp_path: Path) -> None:
    run = make_deferred([160, 180])
    trained, evaluation = run.events[:run.base], run.events[run.base:]
    watch(tmp_path, trained)
    before = (tmp_path / "mllog.txt").read_text()
    assert "block_stop" in before and "eval_start" not in before and "run_stop" not in before
    observer = MllogWriter(CONFIG, tmp_path)
    observer.run_started(RunFacts("r", tmp_path, {}, True, tuple(trained)))
    for event in evaluation:
        observer.event(event)
        assert (tmp_path / "mllog.txt").read_text() == before
    observer.run_ended({})
    assert (tmp_path / "mllog.txt").read_text().splitlines() == lines(run.events, CONFIG)
    assert (tmp_path / "mllog.txt").read_text().startswith(before.splitlines()[0])
    again = MllogWriter(CONFIG, tmp_path)
    again.run_started(RunFacts("r", tmp_path, {}, True, tuple(run.events[:-4])))
    again.run_ended({})
    assert "run_stop" not in (tmp_path / "mllog.txt").read_text()


def test_it_vouches_for_its_file(make_deferred, tmp_path: Path) -> None:
    events = make_deferred().events
    found = findings(watch(tmp_path, events), tmp_path, events)
    assert found["mllog"] == Finding("mllog", True, "mllog.txt is what the events say, in 93 lines")
    assert found.keys() == {"mllog", "official checker", "score", "score, inside", "score, outside", "score, sums"}
    trained = [event for event in events if event.kind != "run_ended"]
    assert not findings(watch(tmp_path, trained), tmp_path, trained).keys() & {"score", "score, sums"}


@pytest.mark.usefixtures("no_checker")
@pytest.mark.parametrize(("spoil", "says"), [
    (lambda text: text.replace('"seed", "value": 7', '"seed", "value": 8'), "from line 7 on"),
    (lambda text: text + text.splitlines()[-1] + "\n", "from line 94 on"),
    (lambda text: text[:-1], "line 0"), (lambda text: "", "from line 1 on")])
def test_a_file_that_was_changed_is_no_witness(make_benchmark, tmp_path: Path, spoil: Any, says: str) -> None:
    events = make_benchmark().events
    observer = watch(tmp_path, events)
    file = tmp_path / "mllog.txt"
    file.write_text(spoil(file.read_text()))
    finding = findings(observer, tmp_path, events)["mllog"]
    assert not finding.ok and says in finding.message


def test_a_file_that_is_gone_is_a_finding(make_benchmark, tmp_path: Path) -> None:
    (finding,) = MllogWriter(CONFIG, tmp_path).check_run(tmp_path, make_benchmark().events)
    assert not finding.ok and "No such file" in finding.message


def test_a_fault_of_the_record_itself_is_found(make_benchmark, tmp_path: Path) -> None:
    events = make_benchmark(seed=-1).events
    found = findings(watch(tmp_path, events), tmp_path, events)
    assert found["mllog"].ok and not found["mllog seed"].ok


@pytest.mark.usefixtures("no_checker")
@pytest.mark.parametrize(("ruleset", "ok"), [("mlperf-training-6.1", False), (None, True)])
def test_without_the_checker_only_a_run_under_the_rules_is_in_doubt(make_benchmark, tmp_path: Path, ruleset: str | None,
                                                                    ok: bool) -> None:
    events = make_benchmark(ruleset=ruleset).events
    finding = findings(watch(tmp_path, events), tmp_path, events)["official checker"]
    assert (finding.ok, "not installed" in finding.message) == (ok, True)


@pytest.mark.skipif(bool(official.missing(RULES)), reason=official.missing(RULES))
def test_the_official_verdict_counts_as_the_run_means_it(make_benchmark, make_laptop, tmp_path: Path) -> None:
    def verdict(events: Any) -> Finding:
        return findings(watch(tmp_path, events), tmp_path, events)["official checker"]

    passes = "mlperf-logging 4.1.68 with warnings as errors passes it"
    assert verdict(make_benchmark().events) == Finding("official checker", True, passes)
    assert verdict(make_laptop().events).ok
    strict = verdict(make_benchmark(prompts_per_step=8).events)
    assert not strict.ok and "num_generations_per_prompt" not in strict.message and "eval_accuracy" in strict.message
    unsaid = verdict(make_benchmark(ruleset=None, facts={}).events)
    assert not unsaid.ok and "micro_batch_size" in unsaid.message
