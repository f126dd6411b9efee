"""Runs with a deferred evaluation, as the report and its page show them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Event, Kind, RunFacts, Status, divided
from grpo_bench.observers import EVALUATION, Journal, write_report
from grpo_bench.observers.overview import Overview
from grpo_bench.observers.report import ReportWriter
from grpo_bench.observers.trace import write_trace

from .conftest import History
from .test_report import Page


def test_all_time_before_the_update_that_counts_counts(tmp_path: Path, history: Any) -> None:
    """That of a process that was interrupted, but no start-up of a process that came after the update."""
    history.start()
    history.train(1)
    saved = history.checkpoint()
    history.train(2)
    cut = history.now
    history.resume(2, 1, saved)
    history.train(2)
    history.keep_weights()
    saved = history.checkpoint()
    history.resume(3, 2, saved)
    history.end(Status.TRAINED)
    history.evaluation()
    history.evaluate(2, 3)
    history.end(Status.TARGET_MET)
    record = Overview(history.save(tmp_path)).record
    assert record["time_to_target_s"] == pytest.approx(cut + 1.2 + 2.85)
    startup, *_ = record["what_counts"]["phases"]
    assert startup == {"phase": "startup", "counts": pytest.approx(1.0), "after_it": pytest.approx(1.0),
                       "evaluation": pytest.approx(0.5)}
    assert sum(row["counts"] for row in record["what_counts"]["phases"]) == pytest.approx(cut + 1.2 + 2.85)


def test_an_evaluation_that_was_forced_to_go_on_is_no_result(tmp_path: Path, trained: Any) -> None:
    trained.evaluation()
    trained.evaluate(2, 1)
    done = trained.events[-1].seq + 1
    trained.evaluation_goes_on(2, 2, done)
    trained.events[-2].data["forced"].append("generator.workers: was 1, is 2")
    trained.evaluate(3, 3)
    trained.end(Status.TARGET_MET)
    overview = Overview(trained.save(tmp_path))
    assert (overview.record["scored"], overview.record["unscored"]) == (
        False, ["forced to go on although generator.workers: was 1, is 2"])
    assert "  attempt 2 was forced: generator.workers: was 1, is 2" in list(overview.lines(80))


def test_the_report_says_which_checkpoint_met_the_target_and_what_counts(tmp_path: Path, evaluated: Any) -> None:
    lines = list(Overview(evaluated.save(tmp_path)).lines(80))
    assert lines[:2] == ["laptop, seed 0: target met after 4 steps, in 14.6 s",
                         "pass@2 0.750 ± 0.050 against a target of 0.5"]
    counts = lines.index("Time to target: 14.6 s, until the update of step 4 had ended")
    assert lines[counts + 1:counts + 11] == [
        "  phase       counts  after it  evaluation",
        "  startup     1.00 s         –      0.50 s",
        "  rollout     4.00 s    1.00 s           –",
        "  advantages  0.40 s    0.10 s           –",
        "  update      7.75 s    2.25 s           –",
        "  refit       0.60 s    0.40 s      0.60 s",
        "  validation       –         –      3.00 s",
        "  checkpoint  0.60 s    0.60 s           –",
        "  journal     0.30 s    0.20 s           –",
        "  shutdown         –    0.40 s      0.40 s",
    ]
    assert lines[counts + 11] == "  sum         14.6 s    4.95 s      4.50 s"
    table = lines.index("Evaluation: 3 of 4 checkpoints, 4.50 s, 9.00 s of CPU")
    assert lines[table + 1:table + 6] == [
        "  step  pass@2    error  tasks passed  updated at    took",
        "     2   0.250  ± 0.050        1 of 4      7.25 s  1.20 s",
        "     3   0.250  ± 0.050        1 of 4      10.9 s  1.20 s",
        "     4   0.750  ± 0.050        3 of 4      14.6 s  1.20 s  target met",
        "     5       –                      –      18.4 s       –",
    ]
    assert "Wall clock of the training: 19.6 s, 9.00 s of CPU" in lines


def test_every_second_of_both_journals_is_in_one_part(tmp_path: Path, evaluated: Any) -> None:
    found = Overview(evaluated.save(tmp_path)).record
    parts = found["what_counts"]["parts"]
    assert parts == ["counts", "after_it", "evaluation"]
    sums = {part: sum(row[part] for row in found["what_counts"]["phases"]) for part in parts}
    assert sums["counts"] == pytest.approx(found["time_to_target_s"])
    assert sums["counts"] + sums["after_it"] == pytest.approx(found["wall_s"])
    assert sums["evaluation"] == pytest.approx(found["evaluation"]["wall_s"])


def test_rollouts_of_the_evaluation_have_hops_of_their_own(tmp_path: Path, evaluated: Any) -> None:
    found = Overview(evaluated.save(tmp_path)).record
    generate = [next(hop for hop in hops if hop["hop"] == "generate")["seconds"]
                for hops in (found["hops"], found["evaluation"]["hops"])]
    assert generate == [pytest.approx(20 * 0.5), pytest.approx(24 * 0.5)]
    rows = {row["role"]: row for row in found["plugins"]}
    assert rows["generator"]["evaluation_s"] == pytest.approx(0.6 + 3.0)
    assert rows["generator"]["rollouts_s"] == pytest.approx(44 * 0.5)
    assert rows["trainer"]["alone_s"] == pytest.approx(5 * 2.0 + 4 * 0.3)
    assert {row["purpose"] for row in found["stragglers"]} == {"train", "validation"}


def test_an_evaluation_that_was_resumed_says_what_was_taken_back(tmp_path: Path, evaluated_again: Any) -> None:
    evaluated_again.emit(Kind.ALARM, name="x", message="late")
    overview = Overview(evaluated_again.save(tmp_path))
    first, second = overview.record["evaluation"]["processes"]
    assert first["undone"] == {"seconds": pytest.approx(0.45), "steps": 0, "rollouts": 1}
    assert (second["from_step"], second["undone"]["rollouts"]) == (2, 0)
    assert [item["step"] for item in overview.record["validations"]] == [2, 3, 4, 5]
    assert overview.record["counted"] == {"train": {}, "validation": {}}
    assert overview.record["notices"][0]["evaluating"] is True
    text = "\n".join(overview.lines(80))
    for words in ("No time to target since the target was missed", "Attempts at the evaluation", "0.45 s, 1 rollout",
                  "  phase       training  evaluation"):
        assert words in text, words


@pytest.mark.parametrize(("events", "words"), [
    (0, "trained for 5 steps, 4 checkpoints to evaluate"),
    (2, "evaluation interrupted after 0 of 4 checkpoints"),
    (15, "evaluation interrupted after 1 of 4 checkpoints"),
])
def test_how_far_an_evaluation_is(tmp_path: Path, evaluated: Any, capsys: Any, events: int, words: str) -> None:
    del evaluated.events[evaluated.first + events:]
    folder = evaluated.save(tmp_path)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"laptop, seed 0: {words}\n")
    found = (folder / "report.html").read_text()
    assert words.capitalize() in found
    assert ("pass@2" in found) == (events > 0)
    assert Overview(folder).record["to_evaluate"] == [2, 3, 4, 5][int(events > 10):]


def test_an_evaluation_that_goes_on_is_not_called_interrupted(tmp_path: Path, evaluated: Any, capsys: Any) -> None:
    folder = evaluated.save(tmp_path)
    path = folder / EVALUATION / "events.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:15]))
    journal = Journal(folder / EVALUATION)
    try:
        assert main(["report", str(folder)]) == 0
        assert capsys.readouterr().out.startswith("laptop, seed 0: evaluation goes on after 1 of 4 checkpoints\n")
    finally:
        journal.close()


def test_a_failed_evaluation_shows_its_error(tmp_path: Path, trained: Any) -> None:
    trained.evaluation()
    trained.evaluate(2, 1)
    trained.emit(Kind.ERROR, type="RunFolderError", message="weights-00003 is gone", hint="restore it", plugin=None,
                 role=None, task=None, traceback="")
    trained.end(Status.FAILED)
    text = page(tmp_path, trained).text
    for words in ("Evaluation failed after 1 of 4 checkpoints", "weights-00003 is gone restore it",
                  "1.70 s of the evaluation"):
        assert words in text, words


def page(folder: Path, history: History) -> Page:
    return Page(write_report(history.save(folder)).read_text(encoding="utf-8"))


def test_the_page_shows_the_curve_of_what_was_evaluated(tmp_path: Path, evaluated: Any) -> None:
    found = page(tmp_path, evaluated)
    for words in ("Target met in 14.6 s", "time to target 14.6 s", "wall clock 19.6 s of the training",
                  "evaluation 4.50 s", "4 0.750 ± 0.050 3 of 4 0.250 14.6 s 1.20 s target met",
                  "5 – – – – 18.4 s – not evaluated", "sum 14.6 s 4.95 s 4.50 s",
                  "Where the training's time went", "in evaluation"):
        assert words in found.text, words
    dots = [circle for circle in found.all("circle") if circle["class"] == "metric-dot"]
    assert len(dots) == 3 * 3
    assert "step 4: 0.750 ± 0.050" in found.text


def test_what_an_evaluation_writes_at_its_end_is_what_the_journals_give(tmp_path: Path, evaluated_again: Any) -> None:
    events, live = evaluated_again.events, tmp_path / "live"
    live.mkdir()
    last = max(number for number, event in enumerate(events) if event.kind == Kind.RESUMED)
    for part, before in attempts(events, last):
        writer = ReportWriter(live)
        writer.run_started(RunFacts("r-laptop-0", live, {}, True, history=before))
        for event in part:
            writer.event(event)
        writer.run_ended({})
    again = evaluated_again.save(tmp_path / "again")
    write_report(again)
    write_trace(again, events)
    for name in ("report.html", "trace.json"):
        assert (live / name).read_text() == (again / name).read_text()


def attempts(events: list[Event], last: int) -> Iterator[tuple[list[Event], list[Event]]]:
    """The events of each process, and those before it."""
    training, _ = divided(events)
    yield training, []
    yield events[len(training):last], training
    yield events[last:], events[:last]
