"""Real runs of profile laptop, made short: a simulation calibrated on one is that run again, and much like the next."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from grpo_bench_sim.calibrate import calibrated_on
from grpo_bench_sim.reading import RunTimes, times_of
from grpo_bench_sim.simulation import Simulation, simulate
from grpo_bench_sim.standing import Scenario

from grpo_bench.contract import Phase
from grpo_bench.observers import read_training
from grpo_bench.registry import resolve, survey

from .children import Child

SHORT = {"grpo.max_steps": 5, "grpo.prompts_per_step": 4, "grpo.generations_per_prompt": 8, "validation.max_tasks": 16,
         "validation.k": 2, "validation.period": 2, "validation.target": 1.0, "environment.train_tasks": 64}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs, one after the other."""
    folders = []
    for seed in (0, 1):
        child = Child(tmp_path_factory.mktemp(f"laptop{seed}"), {**SHORT, "seed": seed}, "laptop")
        code, _, err = child.end()
        assert code == 1, err  # the target is missed
        folders.append(child.folder)
    return folders


@pytest.fixture(scope="module")
def simulation(pair: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    """Of a run like the two, by the first."""
    overrides = [f"{key}={value}" for key, value in SHORT.items()]
    plan = survey(resolve("laptop", overrides=overrides, cwd=tmp_path_factory.mktemp("plan")), 0)
    return simulate(plan, calibrated_on(pair[0]), Scenario(), range(5), None)


def taken(times: RunTimes, phase: Phase) -> float:
    return times.ledger.get(phase, 0.0)


def share(times: RunTimes, phase: Phase) -> float:
    """Of the time between start-up and shutdown."""
    return taken(times, phase) / (times.wall - taken(times, Phase.STARTUP) - taken(times, Phase.SHUTDOWN))


def test_it_is_the_run_that_it_was_calibrated_on_again(pair, simulation):
    real = times_of(read_training(pair[0]))
    assert all(len(times.steps) == 5 and [step for step, _ in times.validations] == [0, 2, 4]
               for times in (*simulation.runs, real))
    assert median(times.wall for times in simulation.runs) == pytest.approx(real.wall, rel=0.1)
    assert median(times.median() for times in simulation.runs) == pytest.approx(real.median(), rel=0.25)
    for phase in (Phase.STARTUP, Phase.ROLLOUT, Phase.LOG_PROBABILITIES, Phase.UPDATE, Phase.VALIDATION, Phase.REFIT):
        assert median(taken(times, phase) for times in simulation.runs) == pytest.approx(
            taken(real, phase), rel=0.25, abs=0.01 * real.wall)


def test_the_next_runs_time_goes_where_it_says(pair, simulation):
    following = times_of(read_training(pair[1]))
    for phase in (Phase.ROLLOUT, Phase.UPDATE, Phase.VALIDATION):
        simulated = median(share(times, phase) for times in simulation.runs)
        assert simulated == pytest.approx(share(following, phase), abs=0.2)
    tokens = median(step.tokens for times in simulation.runs for step in times.steps)
    assert tokens == pytest.approx(median(step.tokens for step in following.steps), rel=0.5)
