"""What is read out of journals: of runs that never took place, second by second, and of mock runs in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo_bench.contract import Kind, Phase
from grpo_bench.observers import read_events, read_run, summarise
from grpo_bench.testing import history
from grpo_bench_sim.reading import RunTimes, times_of

from .mocked import ASYNC, SHAPE, ran, slow_plan
from .story import BATCH, Story

STEP_S = 4.0 + 2.0 + 0.1 + 5.0 + 0.2 + 0.5 + 0.3
"""A step of a story: rollout, log-probabilities, advantages, update, drain, refit, journal."""


def told(story: Story, counts: int | None = None) -> RunTimes:
    return times_of(story.events, counts)


def whole() -> Story:
    story = Story().begin(start=10.0, refit=1.0).validate(None, (5.0, 6.0)).step(1).save(1)
    return story.step(2, update=9.0, tokens=70).validate(2, (7.0, 8.0), met=True, drain=2.0).save(2).end("target_met")


def test_every_second_of_a_run_is_in_its_ledger_and_every_step_has_its_own():
    times = told(whole())
    assert (times.status, times.start) == ("target_met", 10)
    assert times.wall == pytest.approx(10 + 1 + 6 + STEP_S + 7 + STEP_S + 4 + 2 + 8 + 7 + 3)
    assert sum(times.ledger.values()) == pytest.approx(times.wall)
    assert times.ledger[Phase.VALIDATION] == 14 and times.ledger[Phase.REFIT] == 2
    assert [step.step for step in times.steps] == [1, 2]
    assert [step.wall for step in times.steps] == pytest.approx([STEP_S, STEP_S + 4 + 2])
    assert [step.phases[Phase.UPDATE] for step in times.steps] == [5, 9]
    assert [(step.tokens, step.rows) for step in times.steps] == [(40, BATCH), (70, BATCH)]
    assert times.validations == ((0, 6), (2, 8)) and times.checkpoints == ((1, 7), (2, 7))


def test_the_score_is_from_the_end_of_start_up_to_the_end_of_the_validation_that_met_the_target():
    times = told(whole())
    assert times.score == pytest.approx(times.wall - 10 - 7 - 3)
    assert sum(times.counted.values()) == pytest.approx(times.score)
    assert Phase.STARTUP not in times.counted and times.counted[Phase.VALIDATION] == 14
    assert told(Story().begin().step(1).validate(1).end("target_missed")).score is None


def test_a_deferred_evaluation_is_scored_at_the_end_of_the_update_that_counts():
    story = Story(deferred=True).begin(start=10.0, refit=1.0).step(1).save(1, "weights").step(2).end("trained")
    first, second = told(story, 1), told(story, 2)
    assert first.score == pytest.approx(1 + 4 + 2 + 0.1 + 5)
    assert second.score == pytest.approx(1 + STEP_S + 7 + 4 + 2 + 0.1 + 5)
    assert sum(second.counted.values()) == pytest.approx(second.score)
    assert told(story).score is None and told(story, 3).score is None


def test_medians_leave_the_first_step_out():
    story = Story().begin().step(1, update=100.0)
    assert (told(story).median(), told(story).median(Phase.UPDATE)) == (0, 0)
    story.step(2, update=3.0).step(3, update=4.0).step(4, update=8.0)
    assert told(story).median(Phase.UPDATE) == 4
    assert told(story).median() == pytest.approx(STEP_S - 1)


def test_a_run_that_was_cut_off_has_the_steps_that_were_over_and_the_time_until_then():
    story = Story().begin(start=10.0, refit=1.0).step(1)
    story.rollouts(2)
    story.work(2)
    story.rollouts(3)
    story.phase(Phase.LOG_PROBABILITIES, 3, 2.0)
    story.add(Kind.BATCH, 3, rows=BATCH, rollouts=BATCH, tokens=100, n_tokens=1.0, reward_mean=0.0)
    times = told(story)
    assert [step.step for step in times.steps] == [1, 2] and times.status == ""
    assert times.wall == pytest.approx(11 + 2 * STEP_S + 4 + 2)
    assert sum(times.ledger.values()) == pytest.approx(times.wall)


def resumed() -> Story:
    story = Story().begin(start=10.0, refit=1.0).step(1).save(1).step(2, update=50.0).validate(2).save(2).end(
        "interrupted", shutdown=0.0)
    return story.resume(1, start=20.0, refit=2.0).step(2).validate(2, (5.0, 6.0), met=True).end("target_met")


def test_a_resumed_run_is_all_attempts_together_with_each_step_as_it_was_done_last():
    times = told(resumed())
    undone = STEP_S + 45 + 6 + 7
    assert times.wall == pytest.approx(11 + STEP_S + 7 + undone + 22 + STEP_S + 6 + 3)
    assert sum(times.ledger.values()) == pytest.approx(times.wall)
    assert [step.wall for step in times.steps] == pytest.approx([STEP_S, STEP_S])
    assert times.validations == ((2, 6),) and times.checkpoints == ((1, 7),)
    assert (times.status, times.start) == ("target_met", 10)
    assert times.score == pytest.approx(times.wall - 10 - 3)
    assert sum(times.counted.values()) == pytest.approx(times.score) and times.counted[Phase.STARTUP] == 20


def test_a_resumed_run_that_was_cut_off_again_has_no_status():
    story = Story().begin().step(1).end("interrupted").resume(1)
    assert told(story).status == ""


def test_an_update_that_a_resumption_made_undone_does_not_count():
    story = Story(deferred=True).begin().step(1).save(1).step(2).resume(1)
    assert told(story, 2).score is None and told(story, 1).score is not None


@pytest.mark.parametrize("events", [
    history.whole_run(), history.failed_run(), [*history.resumed_run()[0], *history.resumed_run()[1]],
    history.deferred_run()[0]], ids=["whole", "failed", "resumed", "deferred"])
def test_the_ledger_is_what_the_journals_summary_says(events):
    times, summary = times_of(events), summarise(events)
    assert dict(times.ledger) == pytest.approx(summary["ledger"])
    assert (times.wall, times.status) == (pytest.approx(summary["wall_s"]), summary["status"])
    assert len(times.steps) == summary["steps"]
    if times.score is not None:
        assert times.score + times.start == pytest.approx(summary["time_to_target_s"])


@pytest.mark.parametrize("overrides", [
    (), ASYNC, (*ASYNC, "schedule.in_flight=keep", "schedule.max_age=2"), ("validation.deferred=true",),
], ids=["sync", "drain", "keep", "deferred"])
def test_a_mock_runs_times_are_those_that_it_was_given(tmp_path: Path, overrides):
    run = ran(slow_plan(tmp_path, *SHAPE, *overrides, "validation.metric=pass_k", "validation.target=1.0",
                        "generator.base_skill=-9.0"), tmp_path)
    events = list(read_events(run / "events.jsonl"))
    times = times_of(events)
    assert dict(times.ledger) == pytest.approx(summarise(read_run(run))["ledger"])
    assert sum(times.ledger.values()) == pytest.approx(times.wall)
    assert times.start == pytest.approx(100)
    assert [step.phases[Phase.UPDATE] for step in times.steps] == pytest.approx([300] * len(times.steps))
    assert [step.phases[Phase.LOG_PROBABILITIES] for step in times.steps] == pytest.approx([60] * len(times.steps))
    apart = times.ledger[Phase.STARTUP] + times.ledger.get(Phase.VALIDATION, 0) + times.ledger.get(Phase.CHECKPOINT, 0)
    first_refit = next(event.data["seconds"] for event in events if event.kind == Kind.REFIT)
    assert sum(step.wall for step in times.steps) == pytest.approx(times.wall - apart - first_refit)
    assert [step for step, _ in times.validations] == [event.step for event in events if event.kind == Kind.VALIDATION]
