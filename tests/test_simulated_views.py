"""What is told of a simulation: that it is one, and nothing that nobody computed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Kind, Status

from .simulating import MODEL, SAID, Folder, made, told
from .simulating import copy as copy
from .simulating import deferred as deferred
from .simulating import real as real
from .simulating import simulated as simulated

COMPUTED = ("mean reward", "gradient norm", "groups without signal", "probe difference", "masked", "tasks passed",
            "standard error", "pass@2", "CPU", "SHA-256", "loss ")
"""What reports of real runs tell of their results."""


def test_the_record_says_that_it_is_a_simulation_and_keeps_its_form(simulated: Folder, real: Folder) -> None:
    assert simulated.outcome.status is Status.TARGET_MET
    started, plain = simulated.of(Kind.RUN_STARTED)[0], real.of(Kind.RUN_STARTED)[0]
    assert started["modelled"] == MODEL and "modelled" not in plain
    assert started["scored"] is False and started["unscored"][0] == "it is a simulation"
    assert "it is a simulation" not in plain["unscored"]
    assert next(iter(json.loads((simulated.path / "provenance.json").read_text()).items())) == ("modelled", MODEL)
    assert "modelled" not in json.loads((real.path / "provenance.json").read_text())
    assert (real.path / "trajectories").is_dir() and not (simulated.path / "trajectories").exists()
    kinds = [[event.kind for event in folder.events if event.kind != Kind.ALARM] for folder in (simulated, real)]
    assert kinds[0] == kinds[1]


def test_alarms_about_what_nobody_computed_do_not_come(simulated: Folder, real: Folder) -> None:
    assert {data["name"] for data in real.of(Kind.ALARM)} == {"advantages_all_zero", "probe_not_compared"}
    assert simulated.of(Kind.ALARM) == []


def test_its_summary_begins_with_what_it_is(simulated: Folder, real: Folder) -> None:
    summary = simulated.outcome.summary
    assert list(summary.items())[:2] == [
        ("modelled", MODEL), ("assumed", ["status", "steps", "time_to_target_s"])]
    assert (summary["value"], summary["weights_sha256"], summary["cpu_s"]) == (None, None, None)
    assert summary["time_to_target_s"] == real.outcome.summary["time_to_target_s"] > 0
    assert real.outcome.summary["value"] == 0.0 and real.outcome.summary["weights_sha256"]
    assert not {"modelled", "assumed"} & real.outcome.summary.keys()
    assert simulated.of(Kind.RUN_ENDED)[0]["value"] is None


def test_without_a_target_nothing_is_assumed(tmp_path: Path) -> None:
    folder = made(tmp_path, MODEL, "validation.metric=off", "validation.target=off")
    assert (folder.outcome.status, folder.outcome.summary["assumed"]) == (Status.COMPLETED, [])


def test_its_page_tells_times_and_no_results(simulated: Folder, real: Folder) -> None:
    page, plain = ((folder.path / "report.html").read_text() for folder in (simulated, real))
    shown = re.sub(r"<pre>.*?</pre>|<style>.*?</style>", "", page, flags=re.DOTALL)
    assert re.search("<title>simulation of mock, seed 0: Target assumed met in .*</title>", page)
    assert SAID.replace("<", "&lt;").replace(">", "&gt;") in page
    assert '<span class="tag">simulation</span> <span class="tag">not scored</span>' in page
    assert "<dt>time to target</dt>" in page and "<small> assumed</small>" in page
    for words in ("Where the time went", "Time per step", "Time inside rollouts", "The longest rollouts",
                  "sampled tokens", "How rollouts ended", "<summary>Validations</summary>", "<summary>Steps</summary>"):
        assert words in shown
    assert [words for words in COMPUTED if words in shown] == []
    assert [words for words in COMPUTED if words not in plain] == ["loss "]
    assert "imulat" not in re.sub(r"<pre>.*?</pre>", "", plain, flags=re.DOTALL)


def test_its_report_as_text_and_as_json(simulated: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "report", simulated.path)
    assert code == 0
    assert text.startswith("simulation of mock, seed 0: target assumed met after 3 steps, in ")
    assert SAID in text and "not scored: it is a simulation" in text
    assert "Inside rollouts, which overlap" in text and "The longest rollouts" in text
    assert re.search(r"Validations step tasks took at 3 4 \S+ s", text)
    assert [words for words in COMPUTED if words in text] == []
    assert main(["report", str(simulated.path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record)[:2] == ["modelled", "assumed"]
    assert record["modelled"] == MODEL and record["scored"] is False
    assert [sorted(item) for item in record["validations"]] == [
        ["at_s", "counts_s", "k", "seconds", "step", "target_met", "tasks"]]


def test_the_report_made_anew_is_the_one_that_the_run_left(simulated: Folder, copy: Any) -> None:
    folder = copy(simulated)
    before = [(folder / name).read_text() for name in ("report.html", "trace.json")]
    assert main(["report", str(folder)]) == 0
    assert [(folder / name).read_text() for name in ("report.html", "trace.json")] == before


def test_its_trace_has_no_curves_of_results(simulated: Folder, real: Folder) -> None:
    trace, plain = (json.loads((folder.path / "trace.json").read_text()) for folder in (simulated, real))

    def curves(found: Any) -> set[str]:
        return {event["name"] for event in (found["traceEvents"] if isinstance(found, dict) else found)
                if event["ph"] == "C"}

    assert curves(plain) - curves(trace) == {"mean reward", "pass@2"}
    assert f"simulation, times from {MODEL}" in json.dumps(trace)
    assert '"reward"' in json.dumps(plain) and '"reward"' not in json.dumps(trace)


def test_as_it_runs_it_shows_times_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path, MODEL, display="progress")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == SAID
    shown = [line for line in lines if line.startswith(("step", "valid", "simul", "time"))]
    assert [re.sub(r"[\d.:~,]*\d", "#", line) for line in shown] == [
        *["step #/#  # min # s  # tokens/s  elapsed #  # to step #"] * 2,
        "step #/#  # min # s  # tokens/s  elapsed #", "validated  after step #  elapsed #",
        "simulation: target assumed met after # steps", "time to target # min # s, assumed", "time in all    # min # s"]


def test_one_whose_evaluation_is_deferred_leaves_nothing_to_evaluate(deferred: Folder, copy: Any,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert deferred.outcome.status is Status.TRAINED
    code, text = told(capsys, "report", copy(deferred))
    assert code == 0
    updated = [event.elapsed_s for event in deferred.events if event.kind == Kind.UPDATE]
    assert deferred.outcome.summary["time_to_target_s"] == pytest.approx(updated[3])
    assert deferred.outcome.summary["assumed"] == ["time_to_target_s"]
    assert re.match(r"simulation of mock, seed 0: trained for 5 steps, target assumed met by step 4 in \S+ min \S+ s "
                    "A simulation:", text)
    assert "checkpoints to evaluate" not in text and "grpo-bench eval" not in text
    page = (deferred.path / "report.html").read_text()
    assert "<h1 class=\"fair\">Trained for 5 steps, target assumed met by step 4 in " in page
    code, text = told(capsys, "check", deferred.path)
    assert code == 1 and "run: end: trained, in a simulation" in text and "grpo-bench eval" not in text
    assert "ok run: figures" in text and "ok run: record" in text


def test_nobody_says_when_weights_that_were_not_saved_met_the_target(tmp_path: Path,
                                                                     capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path, MODEL, "validation.deferred=true")
    assert folder.outcome.summary["time_to_target_s"] is None
    code, text = told(capsys, "report", folder.path)
    assert code == 0 and text.startswith("simulation of mock, seed 0: trained for 3 steps, to be evaluated later A sim")


def test_one_that_fails_says_what_can_be_done(tmp_path: Path) -> None:
    folder = made(tmp_path, MODEL, 'trainer.faults=[{at = "update", step = 2, kind = "hang"}]')
    assert folder.outcome.status is Status.FAILED and folder.outcome.error is not None
    assert folder.outcome.error.hint.endswith("after that, grpo-bench simulate makes another simulation")
    assert folder.outcome.summary["modelled"] == MODEL
