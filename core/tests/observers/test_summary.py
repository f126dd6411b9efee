from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from grpo_bench.contract import Kind, Status
from grpo_bench.observers import Tally, summarise

KEYS = ["run", "status", "scored", "metric", "value", "target", "steps", "attempts", "time_to_target_s", "wall_s",
        "cpu_s", "weights_sha256", "ledger", "evaluation"]


def test_a_run_that_met_its_target(met: Any) -> None:
    summary = summarise(met.events)
    assert list(summary) == KEYS
    assert summary["run"] == "r-laptop-0"
    assert (summary["status"], summary["metric"]) == ("target_met", "pass_k")
    assert (summary["value"], summary["target"]) == (0.75, 0.5)
    assert (summary["steps"], summary["cpu_s"], summary["weights_sha256"]) == (2, 9.0, "ab" * 32)
    assert summary["time_to_target_s"] == pytest.approx(1.0 + 1.0 + 4.4 + 4.4)
    assert summary["wall_s"] == pytest.approx(sum(summary["ledger"].values()))


def test_a_run_that_was_cut_off_is_interrupted_with_what_is_known(met: Any) -> None:
    summary = summarise(met.events[:-2])
    assert list(summary) == KEYS
    assert (summary["status"], summary["steps"], summary["value"]) == ("interrupted", 2, 0.75)
    assert (summary["cpu_s"], summary["weights_sha256"]) == (None, None)
    assert sum(summary["ledger"].values()) == pytest.approx(summary["wall_s"])


def test_a_simulation_says_so_first_and_has_no_figures_that_were_not_computed(history: Any) -> None:
    history.start(modelled="logs", passes_at=2)
    history.step = 0
    history.validate(1)
    history.one_step(1, 3)
    history.end(Status.TARGET_MET)
    summary = summarise(history.events)
    assert list(summary) == ["modelled", "assumed", *KEYS]
    assert (summary["modelled"], summary["assumed"]) == ("logs", ["status", "steps", "time_to_target_s"])
    assert (summary["value"], summary["cpu_s"], summary["weights_sha256"]) == (None, None, None)
    assert summary["scored"] is False and summary["time_to_target_s"] > 0


@pytest.mark.parametrize(("passes_at", "step"), [(3, 3), (1, 2), (6, None), (None, None)])
def test_a_simulations_target_is_met_by_the_first_weights_that_were_saved_from_the_assumed_step_on(
        trained: Any, passes_at: int | None, step: int | None) -> None:
    started = {**trained.events[0].data, "modelled": "logs", "passes_at": passes_at,
               "settings": {"validation": {"deferred": True}}}
    summary = summarise([replace(trained.events[0], data=started), *trained.events[1:-1]])
    assert summary["assumed"] == ["time_to_target_s"]
    updates = {event.step: event.elapsed_s for event in trained.events if event.kind == Kind.UPDATE}
    assert summary["time_to_target_s"] == (None if step is None else pytest.approx(updates[step] - 0.25))


def test_a_run_without_a_target_has_no_value(history: Any) -> None:
    history.start(metric=None, target=None)
    history.one_step(1, 4)
    history.end(Status.COMPLETED)
    summary = summarise(history.events)
    assert (summary["status"], summary["value"], summary["steps"]) == ("completed", None, 1)


def test_time_covers_every_attempt(history: Any) -> None:
    history.start()
    history.one_step(1, 1)
    history.step, spent, history.now = None, history.now, 0.0
    history.emit(Kind.RESUMED, 0.5, from_step=0, from_seq=1, attempt=2, forced=[])
    history.one_step(1, 2)
    history.end(Status.TARGET_MET)
    summary = summarise(history.events)
    assert (summary["steps"], summary["attempts"], summary["cpu_s"]) == (1, 2, None)
    assert summary["wall_s"] == pytest.approx(spent + history.now)
    assert summary["time_to_target_s"] == pytest.approx(spent + history.now - 0.4)
    assert sum(summary["ledger"].values()) == pytest.approx(summary["wall_s"])


def test_what_a_resumption_undid_does_not_count(history: Any) -> None:
    history.start()
    history.one_step(1, 1)
    history.one_step(2, 2)
    history.emit(Kind.RESUMED, from_step=1, from_seq=9, attempt=2, forced=[])
    summary = summarise(history.events)
    assert (summary["value"], summary["time_to_target_s"], summary["steps"]) == (0.25, None, 1)


def test_processor_time_is_that_of_all_attempts_that_told_theirs(history: Any) -> None:
    history.start()
    history.end(Status.INTERRUPTED)
    for attempt in (2, 3):
        history.emit(Kind.RESUMED, from_step=0, from_seq=1, attempt=attempt, forced=[])
        ending = tally_of(history).ending(Status.INTERRUPTED, elapsed_s=1.0, cpu_s=2.0, weights_sha256=None)
        history.emit(Kind.RUN_ENDED, **ending)
    assert summarise(history.events)["cpu_s"] == 9.0 + 2.0 + 2.0


def test_a_target_that_was_met_before_the_first_step_and_undone_is_not_met(history: Any) -> None:
    history.start()
    history.validate(2)
    assert summarise(history.events)["time_to_target_s"] is not None
    history.emit(Kind.RESUMED, from_step=0, from_seq=1, attempt=2, forced=[])
    assert summarise(history.events)["time_to_target_s"] is None


def test_a_forced_resumption_is_never_scored(history: Any) -> None:
    history.start()
    assert summarise(history.events)["scored"] is True
    history.emit(Kind.RESUMED, from_step=0, from_seq=1, attempt=2, forced=["a: was 1, is 2"])
    assert summarise(history.events)["scored"] is False


def tally_of(history: Any) -> Tally:
    tally = Tally()
    for event in history.events:
        tally.add(event)
    return tally


def test_no_events_give_an_interrupted_run_of_no_length() -> None:
    summary = summarise([])
    assert (summary["run"], summary["status"], summary["steps"], summary["wall_s"]) == (None, "interrupted", 0, 0.0)
