"""From events to lines where evaluation is deferred: two times that go back, and attempts that leave no trace."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from grpo_bench_rules_mlperf.audit import audit
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.score import score_of
from grpo_bench_rules_mlperf.training_6_1 import RULES
from hypothesis import given, settings, strategies as st

from grpo_bench.contract import Event, Kind, Phase, Status

START_MS = 1_772_600_767_000
"""2026-03-04 05:06:07 UTC."""
STORY = ("_start", "_stop", "eval_accuracy")


def parsed(events: list[Event]) -> list[Line]:
    return [parse(line) for line in lines(events, MllogConfig())]


def values(found: list[Line]) -> dict[str, Any]:
    return {line.key: line.value for line in found}


def story(found: list[Line]) -> list[tuple[float, str, int, Any]]:
    """Seconds since the process began, key, line of the journal, and samples or None, of all but single values."""
    return [((line.time_ms - START_MS) / 1000, line.key, line.metadata["lineno"], line.metadata.get("samples_count"))
            for line in found if line.key.endswith(STORY)]


def _ms_of(at: str) -> int:
    return round(datetime.fromisoformat(at).timestamp() * 1000)


def untimed(found: list[Line]) -> list[tuple[str, str, Any, Any]]:
    return [(line.event_type, line.key, line.value, {
        key: value for key, value in line.metadata.items() if key != "lineno"}) for line in found]


def test_the_story_of_a_deferred_run(make_deferred) -> None:
    """Updates end a quarter of a second before their event; the evaluation begins 500 s after the training's end."""
    found = parsed(make_deferred([160, 180]).events)
    assert story(found) == [
        (0.0, "init_start", 1, None), (61.5, "init_stop", 3, None), (61.5, "run_start", 3, None),
        (61.5, "block_start", 4, 0), (266.25, "block_stop", 145, 20 * 256),
        (833.5, "eval_start", 4, 18 * 256), (838.5, "eval_accuracy", 5, 18 * 256), (838.5, "eval_stop", 5, 18 * 256),
        (839.5, "eval_start", 7, 19 * 256), (844.5, "eval_accuracy", 8, 19 * 256), (844.5, "eval_stop", 8, 19 * 256),
        (253.25, "run_stop", 140, 19 * 256)]
    assert found[-1].metadata == {"file": "events.jsonl", "lineno": 140, "samples_count": 19 * 256, "step": 19,
                                  "status": "success"}
    files = [line.metadata["file"] for line in found]
    assert files[:-7] + files[-1:] == ["events.jsonl"] * (len(files) - 6)
    assert set(files[-7:-1]) == {"eval/events.jsonl"}
    keys = [line.key for line in found]
    assert [line.metadata["step"] for line in found if line.key == "tracked_stats"][::2] == list(range(1, 21))
    assert keys[keys.index("block_stop") + 1:][:2] == ["tracked_stats"] * 2, "the last step's, which came after it"


def test_a_target_that_no_weights_met_ends_with_the_last(make_deferred) -> None:
    run = make_deferred([160, 170, 173], status=Status.TARGET_MISSED, more=0)
    last = parsed(run.events)[-1]
    assert (last.key, last.metadata["status"], last.metadata["step"]) == ("run_stop", "aborted", 20)
    assert last.time_ms == _ms_of(run.updated[20][0])


@pytest.mark.parametrize("status", [Status.FAILED, Status.INTERRUPTED])
def test_an_evaluation_that_is_not_over_ends_nothing(make_deferred, status: Status) -> None:
    run = make_deferred([160], status=status)
    for events in (run.events, run.events[:-1], run.events[:run.base + 3], run.events[:run.base]):
        log = parsed(events)
        assert "run_stop" not in values(log)
        assert values(log).keys() >= {"block_start", "block_stop"}
    assert "block_stop" not in values(parsed(run.events[:run.base - 1])), "the training goes on"


@pytest.mark.parametrize("passed", [[160], [160, 165]])
def test_an_evaluation_that_was_cut_off_followed_its_training(make_deferred, passed: list[int]) -> None:
    """One evaluation is not two in a row, and no end says when it was."""
    run = make_deferred(passed, status=Status.INTERRUPTED)
    log = "".join(f"{line}\n" for line in lines(run.events, MllogConfig()))
    assert [finding.rule for finding in audit(log, strict=RULES)] == ["mllog order"]


def test_weights_of_another_training_end_nothing(make_deferred) -> None:
    run = make_deferred([180])
    events = [replace(event, data={key: value for key, value in event.data.items() if key != "updated_at"})
              if event.kind == Kind.CHECKPOINT else event for event in run.events]
    assert "run_stop" not in values(parsed(events))


def test_an_attempt_that_found_all_done_ends_the_run(make_deferred) -> None:
    """The one before died between the validation that met the target and its last event."""
    run = make_deferred([160, 180])
    whole = parsed(run.events)
    run.events = run.events[:-2]
    run.evaluate_on()
    run.end()
    assert untimed(parsed(run.events)) == untimed(whole)


def test_an_evaluation_that_cannot_count_says_so(make_recording) -> None:
    run = make_recording(scored=True)
    run.phase(Phase.REFIT)
    run.step(1)
    run.save(1)
    run.end(Status.TRAINED)
    run.evaluate(scored=False, unscored=["generator 'm' is a stand-in"])
    (scored,) = [line for line in parsed(run.events) if line.key == "scored"]
    assert (scored.value, scored.metadata["reasons"]) == (False, ["generator 'm' is a stand-in"])


def deferred(run: Any, met: bool, failing: int, more: int, period: int, cuts: list[int],
             ends: list[int]) -> list[Event]:
    """A run from step 1 on, ``failing`` of whose weights miss the target; in step ``cuts[n]`` the n-th attempt of the
    training dies, and in its ``ends[n]``-th validation that of the evaluation."""
    run.train(failing + met + more, period, cuts, run.save)
    run.end(Status.TRAINED)
    run.evaluate()
    step, attempt = 0, 1
    while step < failing + met:
        step += 1
        run.phase(Phase.REFIT, step)
        if ends and ends[0] == step:
            ends.pop(0)
            run.phase(Phase.VALIDATION, step)
            run.wait(2)
            attempt += 1
            step = run.evaluate_on(attempt)
            continue
        run.validate(step, 180 if step > failing else 100)
    run.end(Status.TARGET_MET if met else Status.TARGET_MISSED)
    return run.events


@settings(max_examples=60)
@given(met=st.booleans(), failing=st.integers(1, 4), more=st.integers(0, 2), period=st.integers(1, 4),
       cuts=st.lists(st.integers(1, 6), max_size=2), ends=st.lists(st.integers(1, 5), max_size=3), data=st.data())
def test_interruptions_leave_no_trace_but_time(make_recording, met: bool, failing: int, more: int, period: int,
                                               cuts: list[int], ends: list[int], data: st.DataObject) -> None:
    shape = met, failing, more, period
    whole = parsed(deferred(make_recording(), *shape, [], []))
    run = make_recording()
    events = deferred(run, *shape, list(cuts), list(ends))
    found = parsed(events)
    assert untimed(found) == untimed(whole)
    assert audit("\n".join(map(str, found))) == ()
    assert found[-1].time_ms == _ms_of(run.updated[failing + met][0])
    assert found[-1].metadata["status"] == ("success" if met else "aborted")
    score = score_of(events)
    assert score is not None and score.wrong == ()
    assert score.seconds == (found[-1].time_ms - START_MS - 61_500) / 1000
    assert sum(score.inside.values()) == pytest.approx(score.seconds, abs=1e-6)
    kept = data.draw(st.integers(run.base + 1, len(events) - 1))
    assert "run_stop" not in values(parsed(events[:kept]))
