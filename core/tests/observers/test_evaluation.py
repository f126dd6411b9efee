"""What runs with a deferred evaluation came to."""

from __future__ import annotations

from typing import Any

import pytest
from grpo_bench.contract import Kind, Phase, Status, divided
from grpo_bench.observers import Tally, summarise, unaccounted

UPDATED = {2: 7.25, 3: 10.95, 4: 14.65, 5: 18.35}
"""When the update of each step ended: 2.85 s after it began, the steps before it took 3.4 s, and 3.7 s with weights."""


def test_the_time_that_counts_ends_with_the_update_behind_the_weights(evaluated: Any) -> None:
    summary = summarise(evaluated.events)
    assert (summary["status"], summary["value"], summary["steps"]) == ("target_met", 0.75, 4)
    assert summary["time_to_target_s"] == pytest.approx(UPDATED[4])
    assert (summary["attempts"], summary["wall_s"]) == (1, pytest.approx(1.0 + 3.4 + 4 * 3.7 + 0.4))
    assert summary["evaluation"] == {
        "attempts": 1, "checkpoints": 4, "evaluated": 3, "wall_s": pytest.approx(4.5), "cpu_s": 9.0,
        "ledger": pytest.approx({"startup": 0.5, "refit": 0.6, "validation": 3.0, "shutdown": 0.4})}
    assert "validation" not in summary["ledger"]
    for part in (summary, summary["evaluation"]):
        assert unaccounted(part["ledger"], part["wall_s"]) is None


def test_the_end_of_each_journal_holds_its_own_time(evaluated: Any) -> None:
    training, evaluation = (events[-1].data for events in divided(evaluated.events))
    assert (training["status"], training["steps"], training["value"]) == ("trained", 5, None)
    assert (evaluation["status"], evaluation["steps"], evaluation["value"]) == ("target_met", 4, 0.75)
    assert training["time_to_target_s"] is None
    assert evaluation["time_to_target_s"] == pytest.approx(UPDATED[4])
    assert (training["wall_s"], evaluation["wall_s"]) == (pytest.approx(19.6), pytest.approx(4.5))
    assert sum(evaluation["ledger"].values()) == pytest.approx(4.5)


def test_a_training_that_nobody_evaluated_is_trained(trained: Any) -> None:
    summary = summarise(trained.events)
    assert (summary["status"], summary["steps"], summary["value"], summary["evaluation"]) == ("trained", 5, None, None)


def test_an_evaluation_that_was_cut_off_is_interrupted(evaluated: Any) -> None:
    second = [event.seq for event in evaluated.events[evaluated.first:] if event.kind == Kind.VALIDATION][1]
    summary = summarise(evaluated.events[:evaluated.first + second + 1])
    assert (summary["status"], summary["value"], summary["steps"]) == ("interrupted", 0.25, 3)
    assert (summary["time_to_target_s"], summary["cpu_s"], summary["evaluation"]["cpu_s"]) == (None, 9.0, None)
    assert (summary["evaluation"]["evaluated"], summary["evaluation"]["checkpoints"]) == (2, 4)
    assert unaccounted(summary["evaluation"]["ledger"], summary["evaluation"]["wall_s"]) is None
    nothing_yet = summarise(evaluated.events[:evaluated.first + 2])
    assert (nothing_yet["status"], nothing_yet["steps"], nothing_yet["value"]) == ("interrupted", 5, None)


def test_a_later_attempt_evaluates_again_what_was_cut_off(evaluated_again: Any) -> None:
    summary = summarise(evaluated_again.events)
    assert (summary["status"], summary["steps"], summary["time_to_target_s"]) == ("target_missed", 5, None)
    assert (summary["attempts"], summary["evaluation"]["attempts"], summary["evaluation"]["evaluated"]) == (1, 2, 4)
    assert summary["evaluation"]["wall_s"] == pytest.approx(2.15 + 4.5)
    assert unaccounted(summary["evaluation"]["ledger"], summary["evaluation"]["wall_s"]) is None


@pytest.mark.parametrize(("updated_at", "counts_s"), [
    ("2025-12-31T23:00:00+00:00", UPDATED[4] - 1.75), ("2026-01-01T02:00:00+00:00", UPDATED[4] + 0.25),
    ("2026-01-01T01:00:14.400000+01:00", 14.4)])
def test_a_clock_that_is_wrong_moves_an_update_within_its_phase_only(evaluated: Any, updated_at: str,
                                                                     counts_s: float) -> None:
    evaluated.events[evaluated.first].data["checkpoints"][2]["updated_at"] = updated_at
    assert summarise(evaluated.events[:-1])["time_to_target_s"] == pytest.approx(counts_s)


def test_an_evaluation_whose_parts_are_not_real_is_no_result(trained: Any) -> None:
    assert summarise(trained.events)["scored"] is True
    trained.evaluation(scored=False, unscored=["generator 'x' is a stand-in"])
    assert summarise(trained.events)["scored"] is False


def test_what_an_evaluation_without_a_target_came_to(trained: Any) -> None:
    trained.events[0].data.update(metric=None, target=None)
    trained.evaluation(metric=None, target=None)
    for step in (2, 3, 4, 5):
        trained.evaluate(step, 1)
    trained.end(Status.COMPLETED)
    summary = summarise(trained.events)
    assert (summary["status"], summary["value"], summary["steps"]) == ("completed", None, 5)


def test_the_tally_tells_when_the_weights_of_each_checkpoint_were_made(evaluated: Any) -> None:
    tally = Tally()
    for event in evaluated.events:
        tally.add(event)
    assert tally.updated_s == pytest.approx(UPDATED)
    assert tally.trained == 5
    assert sum(tally.ledger.until(4, UPDATED[4]).values()) == pytest.approx(UPDATED[4])
    assert tally.ledger.until(4, UPDATED[4])[Phase.UPDATE] == pytest.approx(3 * 2.0 + 1.75)
