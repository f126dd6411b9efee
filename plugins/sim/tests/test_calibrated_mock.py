"""A simulation that was calibrated on a mock run in virtual time is that run again."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import pytest
from grpo_bench.contract import Phase
from grpo_bench.observers import read_training
from grpo_bench_sim.calibrate import calibrated_on
from grpo_bench_sim.reading import RunTimes, times_of
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario

from .mocked import ASYNC, SHAPE, ran, slow_plan

WAYS = {
    "sync": (),
    "few at once": ("limits.concurrency=5",),
    "retries": ('environment.faults=[{at = "open", kind = "raise", share = 0.2}]', "limits.max_failed_share=0.5"),
    "drain": (*ASYNC, "trainer.update_s=900"),
    "keep": (*ASYNC, "schedule.in_flight=keep", "generator.receive_s=400"),
    "two steps ahead": (*ASYNC, "schedule.max_age=2", "trainer.update_s=1000", "schedule.in_flight=keep"),
    "prompts in flight": (*ASYNC, "schedule.prompts_in_flight=4", "trainer.update_s=1000"),
    "deferred": ("validation.deferred=true", "checkpoint.period=0", "validation.period=1", "validation.metric=pass_k",
                 "validation.target=1.0"),
}


def middle(runs: Sequence[RunTimes], phase: str | None = None) -> float:
    return median(run.wall if phase is None else run.ledger.get(phase, 0.0) for run in runs)


@pytest.mark.parametrize("way", WAYS)
def test_a_simulation_of_a_run_takes_as_long_as_the_run_did_phase_by_phase(tmp_path, way):
    plan = slow_plan(tmp_path, *SHAPE, *WAYS[way])
    run = ran(plan, tmp_path)
    simulated = simulate(plan, calibrated_on(run), Scenario(), range(3), None).runs
    real = times_of(read_training(run))
    assert {times.status for times in simulated} == {real.status}
    assert middle(simulated) == pytest.approx(real.wall, rel=0.04)
    for phase, spent in real.ledger.items():
        drawn = phase in (Phase.ROLLOUT, Phase.VALIDATION, Phase.DRAIN)
        assert middle(simulated, phase) == pytest.approx(spent, rel=0.1 if drawn else 0.001, abs=0.03 * real.wall)
    assert median(times.median() for times in simulated) == pytest.approx(real.median(), rel=0.15)


def test_a_model_of_one_run_tells_what_another_schedule_takes(tmp_path):
    model = calibrated_on(ran(slow_plan(tmp_path, *SHAPE), tmp_path))
    other = slow_plan(tmp_path, *SHAPE, *ASYNC)
    real = times_of(read_training(ran(other, tmp_path)))
    simulated = simulate(other, model, Scenario(), range(3), None).runs
    assert middle(simulated) == pytest.approx(real.wall, rel=0.05)
    assert middle(simulated, Phase.UPDATE) == pytest.approx(real.ledger[Phase.UPDATE], rel=0.001)
