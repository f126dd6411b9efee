"""Sweeps: what is asked for, and what each value comes to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from grpo_bench_sim.model import Quantity
from grpo_bench_sim.standing import Scenario
from grpo_bench_sim.sweep import MOST, Point, parse, quantity_of, sweep

from grpo_bench.contract import Finding, InputError

from .small import DEFERRED, planned, small, varied


def planner(overrides):
    return planned(*DEFERRED, *overrides)


@pytest.mark.parametrize(("text", "key", "values"), [
    ("schedule.max_age=1,2,4", "schedule.max_age", ("1", "2", "4")),
    (" trainer.learning_rate = 1e-6 , 2e-6 ", "trainer.learning_rate", ("1e-6", "2e-6")),
    ("scale.first step=0.5,1", "scale.first step", ("0.5", "1")),
    ("trainer.betas=[0.9, 0.95],[0.9, 0.999]", "trainer.betas", ("[0.9, 0.95]", "[0.9, 0.999]")),
    ("""agent.name="a,b",'c,d'""", "agent.name", ('"a,b"', "'c,d'")),
    ("a={ b = 1, c = 2 },{ b = 3 }", "a", ("{ b = 1, c = 2 }", "{ b = 3 }")),
    ("x=1,1,2", "x", ("1", "2")),
    ("x=1", "x", ("1",)),
])
def test_a_sweep_is_a_key_and_its_values(text: str, key: str, values: tuple[str, ...]) -> None:
    assert parse(text) == (key, values)


@pytest.mark.parametrize("text", ["schedule.max_age", "=1,2", "x=", "x=1,,2", "x=1,", ""])
def test_what_is_no_sweep_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(InputError, match=r"KEY=A,B,C"):
        parse(text)


def test_a_sweep_has_an_end() -> None:
    assert len(parse("x=" + ",".join(map(str, range(MOST))))[1]) == MOST
    with pytest.raises(InputError, match=f"{MOST + 1} values are more than {MOST}"):
        parse("x=" + ",".join(map(str, range(MOST + 1))))


def test_quantities_are_found_by_their_words() -> None:
    assert quantity_of("first step") == quantity_of("first_step") == quantity_of("First-Step") == Quantity.FIRST_STEP
    assert quantity_of("log_probabilities") == Quantity.LOG_PROBABILITIES
    with pytest.raises(InputError, match="'updates' is no quantity") as raised:
        quantity_of("updates")
    assert raised.value.hint == "did you mean update?" and "refit" in raised.value.message


def test_each_value_is_simulated() -> None:
    found = sweep(planner, small(), Scenario(), "grpo.prompts_per_step", ("4", "8"), (3,))
    assert found.key == "grpo.prompts_per_step" and [point.value for point in found.points] == ["4", "8"]
    batches = [point.simulation.runs[0].steps[0].rows for point in found.points if point.simulation]
    assert batches == [16, 32]


def test_a_scale_multiplies_its_quantity_and_leaves_others() -> None:
    base = Scenario(4, scales={Quantity.REFIT: 2.0, Quantity.UPDATE: 7.0})
    found = sweep(planner, small(), base, "scale.update", ("0", "0.5", "2"), (3,))
    updates = [point.phases.get("update", 0.0) for point in found.points]
    assert updates == pytest.approx([0.0, 4 * 10 / 60, 4 * 40 / 60])
    refits = [point.phases["refit"] for point in found.points]
    assert refits == pytest.approx([refits[0]] * 3) and refits[0] == pytest.approx(4 * 6 / 60)
    assert all(point.to_target and len(set(point.to_target)) == 1 for point in found.points), "of one seed"


def test_a_point_is_the_median_over_seeds_with_least_and_most() -> None:
    point, = sweep(planner, varied(), Scenario(4), "grpo.max_steps", ("6",), (1, 2, 3)).points
    assert point.simulation is not None
    scores = sorted(run.score / 60 for run in point.simulation.runs if run.score)
    assert point.to_target == (scores[1], scores[0], scores[2]) and scores[0] < scores[2]
    assert sum(point.phases.values()) == pytest.approx(scores[1], rel=0.1)


def test_without_a_target_it_is_the_whole_run() -> None:
    point, = sweep(planner, small(), Scenario(4), "grpo.max_steps", ("2",), (3,)).points
    assert point.to_target is None and point.whole is not None
    assert sum(point.phases.values()) == pytest.approx(point.whole[0])


@pytest.mark.parametrize(("key", "value", "said"), [
    ("schedule.max_age", "two", "schedule.max_age=two"), ("grpo.max_stepz", "2", "grpo.max_stepz=2"),
    ("scale.update", "-1", "scale.update=-1"), ("scale.update", "fast", "scale.update=fast"),
    ("scale.update", "nan", "scale.update=nan"), ("scale.updates", "1", "scale.updates=1"),
    ("schedule.max_age", "3", "schedule.max_age=3"),
])
def test_a_value_that_cannot_be_names_itself_before_anything_is_simulated(key: str, value: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^--sweep {said}: "):
        sweep(planner, small(), Scenario(), key, (value,), (3,))


def test_a_point_says_what_makes_it_an_extrapolation() -> None:
    model = small(like={"policy.config": None, "limits.concurrency": 256},
                  needs={Quantity.ROLLOUT: ("limits.concurrency",)})
    assert [point.because for point in sweep(planner, model, Scenario(), "scale.refit", ("1", "2"), (3,)).points] == [
        (), ("refit: scaled by 2",)]
    points = sweep(planner, model, Scenario(), "limits.concurrency", ("256", "16"), (3,)).points
    assert [point.because for point in points] == [(), ("rollout: limits.concurrency is 16, not 256",)]


def test_a_point_says_what_the_rules_have_against_it_besides_the_profile() -> None:
    known, unknown = Finding("policy", False, "another"), Finding("data", False, "not here", unknown=True)
    added = Finding("agent.time", False, "too short")

    def judged(overrides):
        return replace(planner(overrides), findings=(known, unknown, added) if "grpo.max_steps=4" in overrides else
                       (known, unknown))

    points = sweep(judged, small(), Scenario(), "grpo.max_steps", ("2", "4"), (3,)).points
    assert [point.forbidden for point in points] == [(), ("agent.time: too short",)]


def test_runs_that_fail_are_a_point_without_figures() -> None:
    points = sweep(planner, small(), Scenario(), "limits.rollout_s", ("50", "200"), (3,)).points
    assert points[0].simulation is None and points[0].failed and points[1].simulation is not None
    assert (points[0].to_target, points[0].whole, points[0].phases) == (None, None, {})
    assert Point("x", None, "no").failed == "no"
