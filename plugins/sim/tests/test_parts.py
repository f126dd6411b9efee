"""What parts of a simulation take is what the model says, in the phase where a run spends it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import Phase
from grpo_bench_sim.laws import Linear, Lognormal, Recorded
from grpo_bench_sim.model import Assumptions, First, Model, Quantity, Rollouts, Shares
from grpo_bench_sim.reading import RunTimes
from grpo_bench_sim.simulation import simulate
from grpo_bench_sim.standing import Scenario

from .mocked import SHAPE, slow_plan

ROLLOUTS = 4 * 6
SHARES = Shares(sandbox_start=0.1, generate=0.4, environment=0.2, score=0.3)


def rollouts(seconds: float, tokens: int, shares: Shares = SHARES) -> Rollouts:
    return Rollouts(seconds=Lognormal(median=seconds), tokens=Lognormal(median=tokens), shares=shares, turns=3)


def model(**more: Any) -> Model:
    return Model(**{
        "name": "test", "source": "a test", "method": "made up", "date": "2030-01-01", "like": {}, "needs": {},
        "load": 1, "rows": (ROLLOUTS, ROLLOUTS), "passes_after": {str(ROLLOUTS): 6 * ROLLOUTS},
        "start": Lognormal(median=100), "train": (rollouts(50, 30),), "validation": (rollouts(50, 30),),
        "update": Linear(), "refit": Lognormal(median=0), "assumptions": Assumptions(load_requests=1e9), **more})


@pytest.fixture
def took(tmp_path: Path):
    """``took(...)`` are the times of a simulation by a model of these times; six steps, validations after 3 and 6."""
    def run(*overrides: str, **more: Any) -> RunTimes:
        return simulate(slow_plan(tmp_path, *SHAPE, *overrides), model(**more), Scenario(), [0], None).runs[0]

    return run


def test_each_time_is_spent_in_its_phase(took):
    times = took(refit=Recorded(values=(7,)), log_probabilities=Linear(fixed=1, per_row=0.5),
                 driver=Linear(fixed=3), update=Linear(fixed=2, per_row=1, per_token=0.01),
                 checkpoint=Lognormal(median=40), checkpoint_weights=Lognormal(median=9),
                 shutdown=Lognormal(median=11), first=First(log_probabilities=1000, update=2000, rollout=300))
    assert times.ledger == pytest.approx({
        Phase.STARTUP: 100, Phase.ROLLOUT: 6 * 50, Phase.LOG_PROBABILITIES: 6 * (1 + 12 + 3) + 1000,
        Phase.UPDATE: 6 * (2 + 24 + 0.01 * 30 * 24) + 2000, Phase.REFIT: 7 * 7 + 300, Phase.VALIDATION: 2 * 50,
        Phase.CHECKPOINT: 2 * 40 + 9, Phase.SHUTDOWN: 11} | {
        phase: 0 for phase in times.ledger if phase in (Phase.ADVANTAGES, Phase.DRAIN, Phase.JOURNAL)}, abs=1e-3)


@pytest.mark.parametrize(("settings", "asked", "update"), [
    (("grpo.loss.force_on_policy_ratio=true", "grpo.masks.sequence_error_max=off"), 0, 3 + 2),
    ((), 5 + 3, 2), (("grpo.loss.kl.penalty=0.1",), 2 * 5 + 3, 2)])
def test_the_driver_takes_its_time_once_a_step_however_many_passes_it_has(took, settings, asked, update):
    ledger = took(*settings, log_probabilities=Linear(fixed=5), driver=Linear(fixed=3), update=Linear(fixed=2)).ledger
    assert ledger[Phase.LOG_PROBABILITIES] == pytest.approx(6 * asked)
    assert ledger[Phase.UPDATE] == pytest.approx(6 * update)


def test_rollouts_are_those_of_their_step_and_purpose(took):
    times = took(train=(rollouts(50, 30), rollouts(80, 60)), validation=(*[rollouts(50, 9)] * 4, rollouts(200, 9)))
    assert [step.phases[Phase.ROLLOUT] for step in times.steps] == pytest.approx([50, *[80] * 5])
    assert [step.tokens for step in times.steps] == [30 * ROLLOUTS, *[60 * ROLLOUTS] * 5]
    assert times.validations == ((3, pytest.approx(50)), (6, pytest.approx(200)))


def test_a_checkpoint_without_a_law_is_as_fast_as_is_assumed(took):
    times = took(assumptions=Assumptions(bytes_per_s=10, weights_bytes=100, full_bytes=300))
    assert times.checkpoints == ((3, pytest.approx(30)), (6, pytest.approx(30)), (6, pytest.approx(10)))


def test_a_shutdown_can_be_scaled(tmp_path: Path):
    scenario = Scenario(scales={Quantity.SHUTDOWN: 2.0})
    found = simulate(slow_plan(tmp_path, *SHAPE), model(shutdown=Lognormal(median=11)), scenario, [0], None).runs[0]
    assert found.ledger[Phase.SHUTDOWN] == pytest.approx(22)


def test_waiting_for_a_place_lengthens_a_step_but_no_rollout(took):
    assert took("limits.concurrency=8").ledger[Phase.ROLLOUT] == pytest.approx(3 * took().ledger[Phase.ROLLOUT])
