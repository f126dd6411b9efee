from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Kind, Phase, Status
from grpo_bench.observers import Journal
from grpo_bench.observers.compare import Comparison

from .conftest import History

SETTINGS: dict[str, Any] = {
    "description": "one", "grpo": {"max_steps": 4, "split": "train"},
    "validation": {"split": "heldout", "metric": "pass_k", "target": 0.5},
    "trainer": {"use": "steady", "learning_rate": 1e-3, "warmup": 3}, "sampling": {"temperature": 1.0}}
PART = {"name": "steady", "distribution": "acme-trainer", "version": "2.0", "stand_in": False,
        "facts": {"precision": "bf16"}}
TASKS = {"train": {"count": 64, "sha256": "aa"}, "heldout": {"count": 16, "sha256": "bb"}}


def a_run(folder: Path, *, steps: int = 2, update_s: float = 2.0, end: Status | None = Status.TARGET_MET,
          **started: Any) -> Path:
    history = History()
    history.start(**{"run": folder.name, "settings": SETTINGS, "parts": {"trainer": PART}, "tasks": TASKS} | started)
    for step in range(1, steps + 1):
        history.one_step(step, 3 if step == steps else 1)
        history.phase(Phase.UPDATE)
        history.now += update_s - 2.0
    if end is not None:
        history.end(end)
    return history.save(folder)


def compared(a: Path, b: Path) -> tuple[dict[str, Any], str]:
    comparison = Comparison(a, b)
    return comparison.data, "\n".join(comparison.lines(80))


def test_phases_stand_beside_each_other(tmp_path: Path) -> None:
    data, text = compared(a_run(tmp_path / "a"), a_run(tmp_path / "b", steps=4, update_s=5.0))
    update = next(row for row in data["phases"] if row["phase"] == "update")
    assert (update["a"]["seconds"], update["b"]["seconds"]) == (pytest.approx(4.0), pytest.approx(20.0))
    assert (update["difference_s"], update["ratio"]) == (pytest.approx(16.0), pytest.approx(5.0))
    assert (update["a"]["step_median_s"], update["b"]["step_median_s"]) == (pytest.approx(2.0), pytest.approx(5.0))
    for line in ("  update      4.00 s  20.0 s     +16.0 s  5.00",
                 "  update      2.00 s  5.00 s     +3.00 s  2.50",
                 "A laptop, seed 0: target met after 2 steps", "Settings: no difference", "Parts: no difference"):
        assert line in text, line
    assert data["warnings"] == []


def test_an_author_sees_the_plugin_that_was_swapped(tmp_path: Path) -> None:
    other = {**PART, "name": "swift", "distribution": "acme-swift", "stand_in": True, "facts": {"precision": "fp8"}}
    settings = {**SETTINGS, "trainer": {"use": "swift", "learning_rate": 2e-3}, "description": "two"}
    data, text = compared(a_run(tmp_path / "a"), a_run(tmp_path / "b", parts={"trainer": other}, settings=settings))
    assert data["parts"] == [
        {"key": "trainer", "a": "steady (acme-trainer 2.0)", "b": "swift (acme-swift 2.0), stand-in"}]
    assert data["settings"] == [
        {"key": "trainer.use", "a": "steady", "b": "swift"}, {"key": "trainer.learning_rate", "a": 1e-3, "b": 2e-3},
        {"key": "trainer.warmup", "a": 3, "b": None}]
    assert "  trainer.learning_rate  0.001   0.002" in text


def test_facts_of_the_same_plugin_are_compared(tmp_path: Path) -> None:
    other = {**PART, "version": "2.1", "facts": {"precision": "fp8"}}
    data, _ = compared(a_run(tmp_path / "a"), a_run(tmp_path / "b", parts={"trainer": other}))
    assert [item["key"] for item in data["parts"]] == ["trainer", "trainer steady.precision"]


@pytest.mark.parametrize(("changed", "warning"), [
    ({"end": None}, "B did not come to its end: interrupted after 2 steps"),
    ({"end": Status.FAILED}, "B did not come to its end: failed after 2 steps"),
    ({"scored": False, "unscored": ["trainer 'x' is a stand-in"]}, "B is not scored: trainer 'x' is a stand-in"),
    ({"target": 0.7}, "targets differ: 0.5 against 0.7"),
    ({"metric": "accuracy"}, "metrics differ: pass_k against accuracy"),
    ({"tasks": {**TASKS, "heldout": {"count": 16, "sha256": "cc"}}}, "validation tasks differ"),
    ({"tasks": {**TASKS, "train": {"count": 32, "sha256": "aa"}}}, "training tasks differ"),
    ({"run": "a"}, "both are the same run"),
])
def test_what_cannot_be_compared_is_said_first(tmp_path: Path, changed: dict[str, Any], warning: str) -> None:
    data, text = compared(a_run(tmp_path / "a"), a_run(tmp_path / "b", **changed))
    assert data["warnings"] == [warning]
    assert text.index(f"warning: {warning}") < text.index("Wall clock")


def test_a_run_that_goes_on_is_not_called_interrupted(tmp_path: Path, met: Any) -> None:
    met.events = met.events[:-2]
    (tmp_path / "b").mkdir()
    journal = Journal(tmp_path / "b")
    for event in met.events:
        journal.write(event)
    try:
        data, text = compared(a_run(tmp_path / "a"), tmp_path / "b")
    finally:
        journal.close()
    assert data["warnings"][0] == "B is still going on: 2 steps so far"
    assert "interrupted" not in text


def test_attempts_are_told_since_each_starts_up(tmp_path: Path, resumed: Any) -> None:
    data, _ = compared(a_run(tmp_path / "a"), resumed.save(tmp_path / "b"))
    assert "B took 3 attempts: each has a start-up of its own, and what was taken back counts, too" in data["warnings"]


def test_a_forced_resumption_brings_its_own_settings(tmp_path: Path, resumed: Any) -> None:
    forced = {**SETTINGS, "trainer": {"use": "steady", "learning_rate": 5e-3, "warmup": 3}}
    for event in resumed.events:
        if event.kind == Kind.RUN_STARTED:
            event.data["settings"] = SETTINGS
        elif event.kind == Kind.RESUMED and event.data["forced"]:
            event.data["settings"] = forced
    data, _ = compared(a_run(tmp_path / "a"), resumed.save(tmp_path / "b"))
    assert data["settings"] == [{"key": "trainer.learning_rate", "a": 1e-3, "b": 5e-3}]


def deferred(folder: Path, *, met_at: int | None, **started: Any) -> Path:
    """Five steps, evaluated from step 2 on; ``met_at`` None: not evaluated at all."""
    history = History()
    history.start(**{"run": folder.name, "max_steps": 5, "settings": SETTINGS, "parts": {"trainer": PART},
                     "tasks": TASKS} | started)
    for step in range(1, 6):
        history.train(step)
        if step > 1:
            history.keep_weights()
    history.end(Status.TRAINED)
    if met_at is not None:
        history.evaluation(run=folder.name)
        for step in range(2, met_at + 1):
            history.evaluate(step, 3 if step == met_at else 1)
        history.end(Status.TARGET_MET)
    return history.save(folder)


def test_deferred_runs_are_compared_by_their_time_to_target(tmp_path: Path) -> None:
    data, text = compared(deferred(tmp_path / "a", met_at=4), deferred(tmp_path / "b", met_at=3))
    assert (data["a"]["time_to_target_s"], data["b"]["time_to_target_s"]) == (
        pytest.approx(13.65), pytest.approx(9.95))
    assert data["warnings"] == []
    refit = next(row for row in data["evaluation"] if row["phase"] == "refit")
    assert refit["difference_s"] == pytest.approx(-0.2)
    for line in ("  time      13.6 s   9.9 s     −3.70 s  0.73", "  after it  4.95 s  8.65 s     +3.70 s  1.75",
                 "  steps          4       3          −1",
                 "Wall clock of the training", "  sum         4.50 s  3.30 s     −1.20 s  0.73"):
        assert line in text, line
    assert text.index("Time to target") < text.index("Wall clock")


def test_what_keeps_deferred_runs_from_being_compared(tmp_path: Path) -> None:
    trained = deferred(tmp_path / "a", met_at=None)
    data, text = compared(trained, deferred(tmp_path / "b", met_at=3))
    assert data["warnings"] == ["A did not come to its end: trained for 5 steps, 4 checkpoints to evaluate"]
    assert "Time to target" not in text
    data, _ = compared(a_run(tmp_path / "c"), deferred(tmp_path / "d", met_at=3))
    assert data["warnings"] == ["the evaluation of B is deferred; the validations of A are part of its training"]


def test_runs_of_which_neither_is_scored_are_warned_of_once(tmp_path: Path) -> None:
    unscored = {"scored": False, "unscored": ["all is pretence"]}
    data, _ = compared(a_run(tmp_path / "a", **unscored), a_run(tmp_path / "b", **unscored))
    assert data["warnings"] == ["neither is scored: all is pretence"]


def test_a_journal_that_does_not_say_what_ran_is_compared_by_time(tmp_path: Path, met: Any) -> None:
    data, text = compared(met.save(tmp_path / "old"), a_run(tmp_path / "b"))
    assert data["warnings"] == ["not both journals say what ran: parts, settings and tasks are not compared"]
    assert "Settings" not in text
    assert data["settings"] == []


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = a_run(tmp_path / "a"), a_run(tmp_path / "b", update_s=3.0)
    assert main(["compare", str(a), str(b), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["a"]["run"], data["b"]["run"]) == ("a", "b")
    assert main(["compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "A step, median" in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["compare", str(a), str(tmp_path)]) == 2
    assert "is no run folder" in capsys.readouterr().err
