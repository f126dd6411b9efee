from __future__ import annotations

from typing import Any

import pytest
from grpo_bench.contract import Event, Kind, Phase
from grpo_bench.observers import HopLedger, PhaseLedger, unaccounted
from hypothesis import given
from hypothesis import strategies as st


def ledger(events: list[Event]) -> PhaseLedger:
    found = PhaseLedger()
    for event in events:
        found.add(event)
    return found


def test_every_second_of_a_run_has_a_phase(met: Any) -> None:
    phases = ledger(met.events).phases()
    assert list(phases) == ["startup", "rollout", "advantages", "update", "refit", "validation", "journal", "shutdown"]
    assert phases == pytest.approx({"startup": 1.0, "rollout": 2.0, "advantages": 0.2, "update": 4.0, "refit": 0.4,
                                    "validation": 3.0, "journal": 0.2, "shutdown": 0.4})
    assert sum(phases.values()) == pytest.approx(met.events[-1].elapsed_s)


def test_steps_leave_out_start_and_shutdown(met: Any) -> None:
    steps = ledger(met.events).steps()
    assert sorted(steps) == [0, 1, 2]
    assert steps[0] == pytest.approx({"validation": 1.0})
    assert sum(steps[2].values()) == pytest.approx(4.4)


@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.floats(0, 1e4)), max_size=40), st.floats(0, 1e4))
def test_phases_partition_the_wall_clock(moves: list[tuple[Phase, float]], tail: float) -> None:
    now, events = 0.0, []
    for seq, (phase, spent) in enumerate(moves):
        now += spent
        events.append(Event(seq, "", now, Kind.PHASE.value, seq % 3 or None, {"phase": phase.value}))
    assert sum(ledger(events).phases(now + tail).values()) == pytest.approx(now + tail)


def test_the_wait_for_a_resumption_belongs_to_nobody(history: Any) -> None:
    history.start()
    history.phase(Phase.ROLLOUT, 2.0)
    history.rollout("t1.0", after=3.0)
    history.now = 0.0
    history.emit(Kind.RESUMED, 0.5, from_step=0, attempt=2)
    history.phase(Phase.ROLLOUT, 1.0)
    assert ledger(history.events).phases(4.0) == pytest.approx({"startup": 3.5, "rollout": 5.5})


def test_a_sum_that_misses_the_clock_is_told() -> None:
    assert unaccounted({"rollout": 99.95}, 100.0) is None
    assert unaccounted({"rollout": 99.8}, 100.0) == pytest.approx(0.2)
    assert unaccounted({"rollout": 100.2}, 100.0) == pytest.approx(-0.2)


def test_hops_add_up_and_name_the_stragglers(history: Any) -> None:
    for index in range(20):
        history.rollout(f"t1.{index}", durations={"generate": 1.0, "environment": float(index)})
    history.rollout("t1.20", durations={})
    hops = HopLedger()
    for event in history.events:
        hops.add(event)
    assert hops.rollouts == 21
    assert [(name, hop.total, hop.longest) for name, hop in hops.in_order()] == [
        ("generate", 20.0, 1.0), ("environment", 190.0, 19.0)]
    longest = hops.stragglers()
    assert [straggler.rollout_id for straggler in longest] == [f"t1.{index}" for index in range(19, 14, -1)]
    assert (longest[0].hop, longest[0].hop_seconds, longest[0].seconds) == ("environment", 19.0, 20.0)


def test_a_long_validation_does_not_hide_the_stragglers_of_training(history: Any) -> None:
    for index in range(6):
        history.rollout(f"t1.{index}", durations={"generate": 1.0 + index})
        history.rollout(f"v1.{index}", purpose="validation", durations={"generate": 100.0 + index})
    hops = HopLedger()
    for event in history.events:
        hops.add(event)
    assert [straggler.rollout_id for straggler in hops.stragglers()] == [
        "v1.5", "v1.4", "v1.3", "t1.5", "t1.4", "t1.3", "t1.2", "t1.1"]
