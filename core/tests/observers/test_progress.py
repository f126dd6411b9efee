from __future__ import annotations

import asyncio
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Kind, Phase, RunFacts
from grpo_bench.observers import Progress, summarise
from grpo_bench.observers._panel import panel
from grpo_bench.observers._state import RunState
from rich.console import Console


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def show(history: Any, stream: io.StringIO | None, **options: Any) -> None:
    progress = Progress(stream=stream, **options)
    progress.run_started(RunFacts("r", Path("runs/r"), {"validation": {"k": 2, "max_tasks": 4}}, True))
    for event in history.events:
        progress.event(event)
    progress.run_ended(summarise(history.events))


def test_a_file_gets_one_line_per_step_and_a_summary(met: Any) -> None:
    stream = io.StringIO()
    show(met, stream)
    assert stream.getvalue().splitlines() == [
        "run runs/r",
        "pass@2 0.250 ± 0.050 (target 0.5)  before the first step  elapsed 0:02",
        "step 1/4  reward 0.300  loss 0.010  3.40 s  55 tokens/s  elapsed 0:05  ~0:10 to step 4",
        "pass@2 0.250 ± 0.050 (target 0.5)  after step 1  elapsed 0:06",
        "step 2/4  reward 0.300  loss 0.010  3.40 s  55 tokens/s  elapsed 0:09  ~0:07 to step 4",
        "pass@2 0.750 ± 0.050 (target 0.5)  after step 2  elapsed 0:10",
        "target met: pass@2 0.750 ± 0.050 (target 0.5) after 2 steps",
        "time to target 10.8 s",
        "time in all    11.2 s, 9.00 s of CPU",
        "of which       update 36%, validation 27%, rollout 18%, startup 9%, shutdown 4%, refit 4%, advantages 2%,"
        " journal 2%",
        "report         runs/r/report.html",
    ]


def test_stdout_stays_empty_where_json_has_its_last_line(met: Any, capsys: pytest.CaptureFixture[str]) -> None:
    show(met, None, json_output=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "target met" in err


def test_alarms_stalls_and_errors_are_shown_at_once(history: Any) -> None:
    history.start()
    history.emit(Kind.ALARM, name="no_signal", message="no gradient [in brackets]")
    history.emit(Kind.STALL, waiting={}, seconds=130.0, stacks={})
    history.emit(Kind.ERROR, type="PluginError", message="it broke", hint="", plugin=None, role=None, task=None,
                 traceback="")
    stream = io.StringIO()
    show(history, stream)
    assert stream.getvalue().splitlines()[1:4] == [
        "note: no gradient [in brackets]", "stalled: nothing has moved for 2 min 10 s", "error: it broke"]


def test_a_terminal_gets_a_panel_that_leaves_no_trace(met: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    async def run() -> str:
        stream = Terminal()
        progress = Progress(stream=stream)
        progress.run_started(RunFacts("r", Path("runs/r"), {"validation": {"k": 2, "max_tasks": 4}}, True))
        for event in met.events[:-2]:
            progress.event(event)
        await asyncio.sleep(0.6)
        progress.run_ended(summarise(met.events))
        assert len(asyncio.all_tasks()) == 1
        return stream.getvalue()

    shown = asyncio.run(run())
    for words in ("laptop, seed 0", "2 of 4", "0.750", "target 0.5", "55 tokens/s", "~0:07 to step 4", "target met"):
        assert words in shown, words
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_what_stays_on_a_terminal_breaks_between_words(met: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()

    async def run() -> None:
        show(met, stream)

    asyncio.run(run())
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    lines = plain[plain.rindex("target met"):].splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == (
        "target met: pass@2 0.750 ± 0.050 (target 0.5) after 2 steps time to target 10.8 s time in all 11.2 s, 9.00 s "
        "of CPU of which update 36%, validation 27%, rollout 18%, startup 9%, shutdown 4%, refit 4%, advantages 2%, "
        "journal 2% report runs/r/report.html")


def test_without_colours_there_are_none(met: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    Progress(stream=stream).run_ended(summarise(met.events))
    assert not re.search(r"\x1b\[3\d", stream.getvalue())


def test_a_later_attempt_goes_on_where_its_checkpoint_was(resumed: Any) -> None:
    last = max(event.seq for event in resumed.events if event.kind == Kind.RESUMED)
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.run_started(RunFacts("r", Path("runs/r"), {"validation": {"k": 2, "max_tasks": 4}}, True,
                                  history=resumed.events[:last]))
    for event in resumed.events[last:]:
        progress.event(event)
    assert stream.getvalue().splitlines()[:4] == [
        "run runs/r", "attempt 3 goes on after step 1",
        "step 2/4  reward 0.300  loss 0.010  3.40 s  22 tokens/s  elapsed 0:04  ~0:06 to step 4",
        "pass@2 0.250 ± 0.050 (target 0.5)  after step 2  elapsed 0:05"]


def shown(history: Any, first: int) -> list[str]:
    """What a process says that goes on where others have left, from an event on."""
    stream = io.StringIO()
    progress = Progress(stream=stream)
    progress.run_started(RunFacts("r", Path("runs/r"), {"validation": {"k": 2, "max_tasks": 4}}, True,
                                  history=history.events[:first]))
    for event in history.events[first:]:
        progress.event(event)
    progress.run_ended(summarise(history.events))
    return stream.getvalue().splitlines()


def test_a_training_says_what_it_leaves_to_an_evaluation(trained: Any) -> None:
    lines = shown(trained, 0)
    assert lines[-5] == "trained after 5 steps"
    assert lines[-2:] == ["to evaluate    4 checkpoints, steps 2 to 5", "report         runs/r/report.html"]


def test_an_evaluation_is_shown_checkpoint_by_checkpoint(evaluated: Any) -> None:
    assert shown(evaluated, evaluated.first) == [
        "run runs/r",
        "evaluates 4 checkpoints, steps 2 to 5",
        "pass@2 0.250 ± 0.050 (target 0.5)  step 2, checkpoint 1 of 4  elapsed 0:01  ~0:03 to the last",
        "pass@2 0.250 ± 0.050 (target 0.5)  step 3, checkpoint 2 of 4  elapsed 0:02  ~0:02 to the last",
        "pass@2 0.750 ± 0.050 (target 0.5)  step 4, checkpoint 3 of 4  elapsed 0:04",
        "target met: pass@2 0.750 ± 0.050 (target 0.5) after 4 steps",
        "time to target 14.6 s",
        "training       19.6 s",
        "evaluation     4.50 s, 9.00 s of CPU, 3 of 4 checkpoints",
        "of which       validation 67%, refit 13%, startup 11%, shutdown 9%",
        "report         runs/r/report.html",
    ]


def test_a_later_attempt_at_an_evaluation_goes_on_after_what_is_evaluated(evaluated_again: Any) -> None:
    last = next(number for number, event in enumerate(evaluated_again.events) if event.kind == Kind.RESUMED)
    assert shown(evaluated_again, last)[1:3] == [
        "attempt 2 of the evaluation goes on after step 2",
        "pass@2 0.250 ± 0.050 (target 0.5)  step 3, checkpoint 2 of 4  elapsed 0:01  ~0:02 to the last"]


def test_a_later_attempt_that_finds_nothing_evaluated_begins_again(evaluated_again: Any) -> None:
    last = next(number for number, event in enumerate(evaluated_again.events) if event.kind == Kind.RESUMED)
    resumed = evaluated_again.events[last]
    evaluated_again.events[last] = replace(resumed, data={**resumed.data, "from_step": 0})
    assert shown(evaluated_again, last)[1] == "attempt 2 of the evaluation begins again"


@pytest.mark.parametrize("width", [40, 60, 80])
def test_the_panel_of_an_evaluation_shows_where_it_is(evaluated_again: Any, width: int) -> None:
    last = next(number for number, event in enumerate(evaluated_again.events) if event.kind == Kind.RESUMED)
    lines = drawn(evaluated_again.events[:last], width)
    assert [line.split()[0] for line in lines] == ["grpo-bench", "checkpoint", "now", "pass@2", "speed", "time"]
    assert max(map(len, lines)) <= width
    for words in ("seed 0, evaluation", "2 of 4, step 3", "validation", "1 of 8 rollouts", "0.250 ± 0.050",
                  "target 0.5", "1.00 s each", "~0:03 to the last"):
        assert words in "\n".join(lines), words


def drawn(events: Any, width: int) -> list[str]:
    state, console = RunState(), Console(file=io.StringIO(), width=width)
    for event in events:
        state.add(event)
    with console.capture() as captured:
        console.print(panel(state, 9.0, width, curves=True))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_the_panel_shows_whole_words_at_any_width(met: Any, width: int) -> None:
    lines = drawn(met.events[:-3], width)
    assert [line.split()[0] for line in lines] == ["grpo-bench", "step", "now", "pass@2", "reward", "speed", "time"]
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    for words in ("2 of 4", "validation", "8 of 8 rollouts", "0.250 ± 0.050", "target 0.5", "55 tokens/s",
                  "3.40 s a step", "~0:07 to step 4"):
        assert words in "\n".join(lines), words


@pytest.mark.parametrize("width", [40, 80])
def test_the_panel_of_a_simulation_shows_times_only(met: Any, width: int) -> None:
    started = replace(met.events[0], data={**met.events[0].data, "modelled": "logs"})
    lines = drawn([started, *met.events[1:-3]], width)
    assert [line.split()[0] for line in lines] == ["grpo-bench", "step", "now", "speed", "time"]
    assert "simulation of laptop" in lines[0]
    assert not any(words in "\n".join(lines) for words in ("0.250", "0.300", "target"))


def test_the_panel_counts_rollouts_only_while_some_are_under_way(history: Any) -> None:
    history.start()
    history.phase(Phase.ROLLOUT)
    history.rollout("t0")
    assert "1 of 4 rollouts" in drawn(history.events, 80)[2]
    history.emit(Kind.BATCH, rollouts=1)
    history.phase(Phase.UPDATE)
    assert drawn(history.events, 80)[2].split() == ["now", "update"]
