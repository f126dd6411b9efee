from __future__ import annotations

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Kind, Phase, RunFacts, Status
from grpo_bench.observers import write_report
from grpo_bench.observers._charts import _bins
from grpo_bench.observers.report import ReportWriter
from grpo_bench.observers.trace import write_trace

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that elements nest, and keeps attributes and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(folder: Path, history: Any, **files: Any) -> Page:
    history.save(folder)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2))
    return Page(write_report(folder).read_text(encoding="utf-8"))


def test_it_says_what_the_run_came_to(tmp_path: Path, met: Any) -> None:
    text = report(tmp_path, met, profile={"trainer": {"use": "torch"}}, provenance={"python": "3.11"}).text
    for words in (
            "Target met in 10.8 s", "pass@2 0.750 ± 0.050 against a target of 0.5", "2 of at most 4",
            "wall clock 11.2 s", "rollouts 32", "rollout generator + agent + environment 2.00 s 17.9% 1.00 s",
            "sum 11.2 s 100%",
            "completed – 8 (100.0%) 24 (100.0%)", "Alarms None.", '"use": "torch"', '"python": "3.11"', "ab" * 32):
        assert words in text, words


def test_it_needs_nothing_from_elsewhere(tmp_path: Path, met: Any) -> None:
    page = report(tmp_path, met)
    names = {name for name, _ in page.elements}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert all(attributes.keys().isdisjoint({"src", "href", "onclick", "onload"}) for _, attributes in page.elements)
    assert not re.search(r"url\(|@import|https?:", (tmp_path / "report.html").read_text())


def test_every_picture_has_a_name_and_is_drawn_for_three_widths(tmp_path: Path, met: Any) -> None:
    pictures = report(tmp_path, met).all("svg")
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    by_name: dict[str | None, set[str | None]] = {}
    for picture in pictures:
        by_name.setdefault(picture["aria-label"], set()).add(picture["class"])
    assert by_name == {
        "pass@2 and mean training reward by step": {"wide", "middle", "narrow"},
        "Shares of the wall clock by phase": {"share"},
        "Seconds per step by phase": {"wide", "middle", "narrow"},
        "Rollouts by turns": {"wide", "middle", "narrow"},
        "Rollouts by sampled tokens": {"wide", "middle", "narrow"}}


def test_words_from_outside_stay_words(tmp_path: Path, met: Any) -> None:
    hostile = "<script>alert('x')</script>"
    met.events.pop()
    met.emit(Kind.ALARM, name="x", message=hostile)
    met.rollout(hostile, task_id=hostile, end="failed", cause="agent", message=hostile, reward=None,
                durations={"queue": 99.0})
    page = report(tmp_path, met, profile={"description": hostile})
    assert page.all("script") == []
    assert page.text.count(hostile) == 5


def test_a_failed_run_shows_its_error(tmp_path: Path, history: Any) -> None:
    history.start(scored=False)
    history.one_step(1, 1)
    history.emit(Kind.ERROR, type="PluginError", message="the generator gave up", hint="see engine.log", plugin="torch",
                 role="generator", task=None, traceback="")
    history.end(Status.FAILED)
    text = report(tmp_path, history).text
    for words in ("not scored", "Failed after 1 step", "the generator gave up see engine.log",
                  "the generator gave up [plugin torch, role generator] (see engine.log)"):
        assert words in text, words


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_run_that_ended_at_once_has_a_report(tmp_path: Path, history: Any, count: int) -> None:
    history.start()
    del history.events[count:]
    assert "Interrupted after 0 steps" in report(tmp_path, history).text


def test_time_that_no_phase_holds_is_told(tmp_path: Path, met: Any) -> None:
    met.events[-1].data["wall_s"] += 1.0
    assert "1.00 s unaccounted for" in report(tmp_path, met).text


def test_a_long_run_stays_readable(tmp_path: Path, history: Any) -> None:
    history.start(max_steps=300)
    for step in range(1, 301):
        history.step = step
        history.phase(Phase.UPDATE)
        history.phase(Phase.REFIT, after=1.0)
        history.emit(Kind.STEP, 0.5, version=step, seconds=1.5, reward_mean=-2.0 + step / 150, rollouts=4,
                     sampled_tokens=80)
        for _ in range(3):
            history.emit(Kind.ALARM, name="no_signal", message=f"no gradient {step % 50}")
    history.end(Status.COMPLETED)
    page = report(tmp_path, history)
    assert "Completed 300 steps" in page.text
    assert "18 ×" in page.text
    assert "10 more kinds of notices" in page.text
    assert len(page.all("rect")) < 3 * 120 * 2 + 20


def test_what_a_run_writes_at_its_end_is_what_its_journal_gives(tmp_path: Path, resumed: Any) -> None:
    """Also in a later attempt, which is told of the earlier ones."""
    live, again = tmp_path / "live", resumed.save(tmp_path / "again")
    live.mkdir()
    last = max(event.seq for event in resumed.events if event.kind == Kind.RESUMED)
    writer = ReportWriter(live)
    writer.run_started(RunFacts("r-laptop-0", live, {}, True, history=resumed.events[:last]))
    for event in resumed.events[last:]:
        writer.event(event)
    writer.run_ended({})
    write_report(again)
    write_trace(again, resumed.events)
    for name in ("report.html", "trace.json"):
        assert (live / name).read_text() == (again / name).read_text()


def test_what_happened_in_rollouts_is_counted(tmp_path: Path, history: Any) -> None:
    history.start()
    history.step = 1
    history.rollout("a", counters={"malformed_calls": 3, "agent_finished": 1})
    history.rollout("b", counters={"malformed_calls": 2, "tampering": 1, "split_sequences": 0}, attempt=1)
    history.rollout("c", "validation", counters={"agent_finished": 1})
    history.end(Status.COMPLETED)
    page = report(tmp_path, history)
    for words in ("agent finished 1 in 1 1 in 1", "malformed calls 5 in 2 0 in 0", "retries 1 in 1 0 in 0",
                  "tampering 1 in 1 0 in 0"):
        assert words in page.text
    assert "split sequences" not in page.text
    assert [cell.get("class") for cell in page.all("td")].count("bad") == 1


def test_a_run_in_which_nothing_is_counted_has_no_table_of_it(tmp_path: Path, met: Any) -> None:
    assert "What happened in rollouts" not in report(tmp_path, met).text


def test_a_single_step_is_still_a_picture(tmp_path: Path, history: Any) -> None:
    history.start(target=None, metric=None)
    history.step = 1
    history.phase(Phase.UPDATE)
    history.emit(Kind.STEP, 1.0, version=1, seconds=1.0, reward_mean=-2.5, rollouts=4, sampled_tokens=80)
    history.end(Status.COMPLETED)
    page = report(tmp_path, history)
    assert [circle["class"] for circle in page.all("circle")] == ["reward-dot"] * 3


def test_lengths_are_counted_in_round_ranges() -> None:
    bins = _bins(Counter({103: 1, 7_591: 2, 52_519: 3}))
    assert (bins[0], bins[-1]) == ((0, 4_999, 1), (50_000, 54_999, 3))
    assert sum(count for *_, count in bins) == 6
    assert _bins(Counter({7: 2})) == [(7, 7, 2)]
    assert _bins(Counter()) == []
