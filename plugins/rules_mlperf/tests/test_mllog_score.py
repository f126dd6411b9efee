"""The clock ledger: what lies inside a score and what outside, and sums that do not hold. Each second is known."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from grpo_bench_rules_mlperf.score import Score, score_of

from grpo_bench.contract import Event, Kind, Phase, Status


def score(events: list[Event]) -> Score:
    found = score_of(events)
    assert found is not None
    return found


def outside(found: Score) -> dict[str, float]:
    return {item.what: item.seconds for item in found.outside}


def test_a_deferred_run(make_deferred) -> None:
    """19 steps of 10 s, of which the last 1.25 s come after its update; 3 s for each weights, 60 + 1.5 s of set-up."""
    found = score(make_deferred([160, 180]).events)
    assert (found.seconds, found.status, found.step, found.wrong) == (191.75, "success", 19, ())
    assert found.inside == {"rollout": 152.0, "update": 36.75, "checkpoint": 3.0}
    assert outside(found) == {"set-up": 61.5, "writing the weights": 3.0, "rest of step 19": 1.25,
                              "later steps and the end of training": 15.0, "evaluation": 74.0}
    assert (found.saved, found.saved_after) == (1, 2)
    assert all(item.why for item in found.outside)
    assert "3.000 s of it wrote checkpoints" in found.outside[3].why


def test_nothing_of_training_is_left_over(make_deferred) -> None:
    run = make_deferred([100, 100, 174], more=3)
    found = score(run.events)
    training = run.events[run.base - 1].elapsed_s
    assert found.seconds + sum(outside(found).values()) - outside(found)["evaluation"] == pytest.approx(training)
    assert sum(found.inside.values()) == pytest.approx(found.seconds)


def test_a_target_that_was_missed_has_a_ledger_too(make_deferred) -> None:
    found = score(make_deferred([100, 100], status=Status.TARGET_MISSED, more=0).events)
    assert (found.status, found.step, found.seconds, found.wrong) == ("aborted", 19, 191.75, ())


def test_a_run_that_validates_while_it_trains(make_benchmark) -> None:
    found = score(make_benchmark([160, 180]).events)
    assert (found.seconds, found.wrong) == (200.0, ())
    assert found.inside == {"rollout": 152.0, "update": 38.0, "validation": 10.0}
    assert outside(found) == {"set-up": 61.5, "end": 2.0}


@pytest.mark.parametrize("status", [Status.FAILED, Status.INTERRUPTED])
def test_what_did_not_end_has_none(make_deferred, make_recording, status: Status) -> None:
    run = make_deferred([160], status=status)
    assert score_of(run.events) is None
    assert score_of(run.events[:run.base]) is None
    assert score_of(make_recording().events) is None


def test_time_between_attempts_counts(make_recording) -> None:
    run = make_recording()
    run.phase(Phase.REFIT)
    run.step(1)
    run.checkpoint(1)
    run.phase(Phase.ROLLOUT, 2)
    run.resume(gone_s=100.0)
    run.step(2)
    run.save(2)
    run.end(Status.TRAINED)
    run.evaluate()
    run.validate(2, 200)
    run.end()
    found = score(run.events)
    assert found.inside == {"startup": 60.0, "rollout": 16.0, "update": 2.75, "between attempts": 100.0}
    assert (found.wrong, found.seconds) == ((), 178.75)


def test_a_first_attempt_that_never_started_is_set_up(make_recording) -> None:
    run = make_recording()
    run.resume(gone_s=30.0)
    run.step(1)
    run.save(1)
    run.end(Status.TRAINED)
    run.evaluate()
    run.validate(1, 200)
    run.end()
    found = score(run.events)
    assert found.inside == {"rollout": 8.0, "update": 0.75}
    assert (outside(found)["set-up"], found.wrong) == (60.0, ())


def moved(events: list[Event], kind: Kind, seconds: float, step: int | None = None, **names: str) -> list[Event]:
    """Other data: the time of an update, as its event and its weights have it."""
    def other(event: Event) -> Event:
        if event.kind not in (kind, Kind.CHECKPOINT) or event.step != step:
            return event
        name = "ended_at" if event.kind == Kind.UPDATE else "updated_at"
        at = datetime.fromisoformat(event.data[name]) + timedelta(seconds=seconds)
        return replace(event, data={**event.data, name: at.isoformat(timespec="microseconds")})

    return [other(event) for event in events]


@pytest.mark.parametrize(("seconds", "says"), [(-3.0, "2.250 s outside of its phase"), (3.5, "outside of its phase")])
def test_a_trainer_whose_clock_is_another(make_deferred, seconds: float, says: str) -> None:
    events = moved(make_deferred([160, 180]).events, Kind.UPDATE, seconds, 19)
    assert any(says in line for line in score(events).wrong), score(events).wrong


def changed(event: Event, **data: Any) -> Event:
    return replace(event, data={**event.data, **data})


def test_an_account_that_does_not_come_to_the_same(make_deferred) -> None:
    run = make_deferred([160, 180])
    events = list(run.events)
    events[-1] = changed(events[-1], time_to_target_s=200.0)
    (wrong,) = score(events).wrong
    assert wrong == "set-up and score: 253.250 s, the run's time to the target: 200.000 s"
    events = list(run.events)
    events[run.base - 1] = changed(events[run.base - 1], wall_s=300.0)
    assert score(events).wrong == ("the phases of the training: 272.500 s, its last event: 300.000 s",)


def test_two_clocks_that_went_apart(make_deferred) -> None:
    """The machine's wall clock was set an hour back after the tenth step: what the log says is no time any more."""
    run = make_deferred([160, 180])
    place = next(event.seq for event in run.events if event.kind == Kind.STEP and event.step == 10)
    back = timedelta(hours=1)
    events = [event if event.seq <= place and number < run.base else replace(
        event, at=(datetime.fromisoformat(event.at) - back).isoformat(timespec="microseconds"))
        for number, event in enumerate(run.events)]
    events = moved(events, Kind.UPDATE, -3600.0, 19)
    assert any("the phases inside: 191.750 s, the score: -3408.250 s" in line for line in score(events).wrong)


def test_it_is_plain_data_and_words(make_deferred) -> None:
    found = score(make_deferred([160, 180]).events)
    assert json.loads(json.dumps(found.to_json()))["inside"]["rollout"] == 152.0
    says = {finding.rule: finding.message for finding in found.findings()}
    assert says["score"] == "191.750 s (3.196 min) from run_start to run_stop, success at step 19"
    assert says["score, inside"] == "rollout 152.000 s, update 36.750 s, checkpoint 3.000 s; checkpoints written: 1"
    assert says["score, outside"].startswith("set-up 61.500 s (a run starts when its parts have); writing the weights")
    assert all(finding.ok for finding in found.findings())
    assert not replace(found, wrong=("no",)).findings()[-1].ok
