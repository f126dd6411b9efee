from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.cli import main
from grpo_bench.contract import Kind, Phase, Status, canonical
from grpo_bench.observers import Journal
from grpo_bench.observers._layout import wrapped
from grpo_bench.observers._view import RunView
from grpo_bench.observers.overview import Overview
from rich.cells import cell_len

PARTS = {
    "trainer": {"name": "steady", "distribution": "acme-trainer", "version": "2.0", "stand_in": False},
    "generator": {"name": "steady", "distribution": "acme-generator", "version": "1.1", "stand_in": True},
    "environment": {"name": "sands", "distribution": "acme-sands", "version": "1.0", "stand_in": False},
    "agent": {"name": "smith", "distribution": "acme-smith", "version": "1.0", "stand_in": False},
    "fabric": {"name": "local", "distribution": "grpo-bench", "version": "0.1.0", "stand_in": False},
}


def test_the_report_prints_both_ledgers(tmp_path: Path, met: Any, monkeypatch: pytest.MonkeyPatch,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", str(met.save(tmp_path / "r"))]) == 0
    assert capsys.readouterr().out.replace(str(tmp_path), "").splitlines() == [
        "laptop, seed 0: target met after 2 steps, in 10.8 s",
        "pass@2 0.750 ± 0.050 against a target of 0.5",
        "run r-laptop-0",
        "",
        "Wall clock: 11.2 s, 9.00 s of CPU",
        "  phase         time  share  a step  whose work",
        "  startup     1.00 s   8.9%       –  all parts",
        "  rollout     2.00 s  17.9%  1.00 s  generator + agent + environment",
        "  advantages  0.20 s   1.8%  0.10 s  core",
        "  update      4.00 s  35.7%  2.00 s  trainer",
        "  refit       0.40 s   3.6%  0.20 s  trainer + generator",
        "  validation  3.00 s  26.8%  1.00 s  generator + agent + environment",
        "  journal     0.20 s   1.8%  0.10 s  core",
        "  shutdown    0.40 s   3.6%       –  all parts",
        "  sum         11.2 s   100%  4.40 s",
        "",
        "Inside rollouts, which overlap",
        "  hop               all  share    mean  longest  whose work",
        "  queue          3.20 s  11.6%  0.10 s   0.10 s  core",
        "  sandbox start  0.32 s   1.2%   10 ms    10 ms  environment",
        "  generate       16.0 s  58.1%  0.50 s   0.50 s  generator",
        "  environment    6.40 s  23.3%  0.20 s   0.20 s  agent + environment",
        "  score          1.60 s   5.8%   50 ms    50 ms  environment",
        "",
        "The longest rollouts",
        "  rollout  task  step          end          time  most of it",
        *(f"  v0.{index}     t-1   validation 0  completed  0.86 s  generate 0.50 s" for index in range(3)),
        *(f"  t1.{index}     t-1   train 1       completed  0.86 s  generate 0.50 s" for index in range(4)),
        "  t2.0     t-1   train 2       completed  0.86 s  generate 0.50 s",
        "",
        "Validations",
        "  step  pass@2    error  tasks passed    took      at",
        "     0   0.250  ± 0.050        1 of 4  1.00 s  2.00 s",
        "     1   0.250  ± 0.050        1 of 4  1.00 s  6.40 s",
        "     2   0.750  ± 0.050        3 of 4  1.00 s  10.8 s",
        "",
        "Plugins, on the critical path and off it",
        "  role         plugin   alone  shared  rollouts  failures",
        "  trainer      –       4.00 s  0.40 s         –  none",
        "  generator    –            –  5.40 s    16.0 s  none",
        "  environment  –            –  5.00 s    8.32 s  none",
        "  agent        –            –  5.00 s    6.40 s  none",
        "",
        "report  /r/report.html",
        "trace   /r/trace.json",
    ]
    assert (tmp_path / "r" / "trace.json").exists()


def test_the_figures_as_json(tmp_path: Path, met: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--json", str(met.save(tmp_path))]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sum(item["seconds"] for item in record["phases"]) == pytest.approx(record["wall_s"])
    assert sum(item["share"] for item in record["phases"]) == pytest.approx(1.0)
    assert sum(item["share"] for item in record["hops"]) == pytest.approx(1.0)
    assert record["unaccounted_s"] is None
    assert (record["status"], record["steps"], record["scored"], record["unscored"]) == ("target_met", 2, True, [])
    assert [item["passed"] for item in record["validations"]] == [1, 1, 3]


def test_time_and_failures_have_a_plugin(tmp_path: Path, history: Any) -> None:
    history.start(parts=PARTS)
    history.phase(Phase.ROLLOUT)
    for index, (cause, durations) in enumerate([
            ("sandbox_start", {"sandbox_start": 60.0}), ("sandbox_start", {"sandbox_start": 60.0}),
            ("agent", {"environment": 2.0}), ("worker", {}), ("queue", {"queue": 600.0}),
            ("deadline", {"generate": 900.0, "environment": 5.0})]):
        history.rollout(f"t0.{index}", end="failed", cause=cause, message="no", reward=None, durations=durations)
    history.emit(Kind.ERROR, message="it broke", hint="", plugin="steady", role="trainer", task=None)
    history.end(Status.FAILED)
    overview = Overview(history.save(tmp_path))
    rows = {row["role"]: row for row in overview.record["plugins"]}
    assert list(rows) == list(PARTS)
    assert {role: row["failed_rollouts"] for role, row in rows.items()} == {
        "trainer": {}, "generator": {"deadline": 1}, "environment": {"sandbox_start": 2}, "agent": {"agent": 1},
        "fabric": {"worker": 1}}
    assert (rows["trainer"]["errors"], rows["trainer"]["distribution"]) == (1, "acme-trainer 2.0")
    assert (rows["generator"]["rollouts_s"], rows["environment"]["rollouts_s"]) == (900.0, 127.0)
    text = "\n".join(overview.lines(None))
    for words in ("steady (stand-in)", "2 sandbox start", "1 error", "error: it broke [plugin steady, role trainer]"):
        assert words in text, words


def test_a_resumed_run_says_what_was_taken_back_and_forced(tmp_path: Path, resumed: Any) -> None:
    overview = Overview(resumed.save(tmp_path))
    first, second, third = overview.record["processes"]
    assert (first["undone"]["steps"], first["undone"]["rollouts"]) == (1, 13)
    assert first["undone"]["seconds"] == pytest.approx(4.65)
    assert first["seconds"] == pytest.approx(11.55)
    assert second["undone"] == {"seconds": pytest.approx(5.6), "steps": 1, "rollouts": 12}
    assert third["undone"] == {"seconds": 0.0, "steps": 0, "rollouts": 0}
    assert sum(item["seconds"] for item in overview.record["phases"]) == pytest.approx(11.55 + 5.6 + 10.4)
    assert overview.record["scored"] is False
    text = "\n".join(overview.lines(80))
    for words in ("not scored: forced to go on although trainer.learning_rate: was 0.001, is 0.002",
                  "attempt 2 was forced: trainer.learning_rate", " s  4.65 s, 1 step, 13 rollouts"):
        assert words in text, words
    overview.write()
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Attempts</h2>" in page
    assert "4.65 s, 1 step, 13 rollouts" in page


def test_the_page_and_the_text_give_a_step_the_same_length(tmp_path: Path, resumed: Any) -> None:
    overview = Overview(resumed.save(tmp_path))
    overview.write()
    total = next(line for line in overview.lines(80) if line.startswith("  sum ")).split("%")[1].strip()
    assert total
    assert f'<td class="n">{total}</td><td class="work beside"></td></tr></tfoot>' in (
        tmp_path / "report.html").read_text()


def test_steps_validations_and_rollouts_are_those_of_the_canonical_history(resumed: Any) -> None:
    seen, straight = RunView(resumed.events), RunView(canonical(resumed.events))
    assert [(row.step, row.step_data, row.batch, row.update) for row in seen.steps] == [
        (row.step, row.step_data, row.batch, row.update) for row in straight.steps]
    assert [item.data for item in seen.validations] == [item.data for item in straight.validations]
    assert seen.rollouts == straight.rollouts
    assert [row.step for row in seen.steps] == [1, 2, 3]


def test_steps_that_were_taken_back_count_as_nobodys(resumed: Any) -> None:
    ledger = RunView(resumed.events).tally.ledger
    assert sorted(ledger.steps()) == [0, 1, 2, 3]
    assert sum(ledger.steps()[2].values()) == pytest.approx(4.4)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_lines_keep_to_the_terminal(tmp_path: Path, resumed: Any, width: int) -> None:
    long = "a-repository-with-a-long-name__and-a-longer-issue-12345-任务-" * 2
    resumed.events.pop()
    resumed.emit(Kind.ALARM, 0.1, name="x", message="one word after another " * 9)
    resumed.rollout("t9.0", task_id=long, durations={"generate": 99.0})
    lines = list(Overview(resumed.save(tmp_path)).lines(width))
    tables = [line for line in lines if line.startswith("  ")]
    assert max(map(cell_len, lines)) <= max(width, 60)
    assert any("…" in line for line in tables) == (width < 200)


def test_a_run_that_goes_on_is_not_called_interrupted(tmp_path: Path, met: Any, capsys: Any) -> None:
    met.events = met.events[:-2]
    journal = Journal(tmp_path)
    for event in met.events:
        journal.write(event)
    try:
        assert main(["report", str(tmp_path)]) == 0
        assert capsys.readouterr().out.startswith("laptop, seed 0: going on, 2 steps so far\n")
        assert "Going on, 2 steps so far" in (tmp_path / "report.html").read_text()
    finally:
        journal.close()
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("laptop, seed 0: interrupted after 2 steps")


def test_a_run_that_never_started_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "events.jsonl").write_text("")
    for command in (["report", str(tmp_path)], ["compare", str(tmp_path), str(tmp_path)]):
        assert main(command) == 2
        assert "holds no run that has started" in capsys.readouterr().err


def test_words_stay_whole() -> None:
    assert wrapped("  error: something happened to a part", 20, 4) == [
        "  error: something", "    happened to a", "    part"]
    assert wrapped("x" * 30 + " y", 10) == ["x" * 30, "y"]
    assert wrapped("", 10) == [""]


def test_a_terminal_that_knows_no_unicode_gets_question_marks(tmp_path: Path, met: Any, capsys: Any,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["report", str(met.save(tmp_path))]) == 0
    stream.flush()
    assert b"pass@2 0.750 ? 0.050" in stream.buffer.getvalue()  # type: ignore[attr-defined]
