"""What is calibrated, extrapolated and assumed, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from grpo_bench_sim.choosing import packaged
from grpo_bench_sim.laws import Lognormal, Recorded
from grpo_bench_sim.model import Model, Quantity
from grpo_bench_sim.standing import Scenario
from grpo_bench_sim.statuses import Standing, standings

from .small import DEFERRED, MOCK, ROLLOUTS, planned, small, varied

GB300 = {quantity: "calibrated" for quantity in Quantity if quantity is not Quantity.SHUTDOWN} | {
    Quantity.LOG_PROBABILITIES: "assumed", Quantity.CHECKPOINT: "assumed"}
ROLLING = {Quantity.ROLLOUT, Quantity.STALLS}
SERVING = ROLLING | {Quantity.VALIDATION}
TRAINING = {Quantity.START, Quantity.UPDATE, Quantity.FIRST_STEP}


def standing(quantity: Quantity, model: Model, *overrides: str, scenario: Scenario | None = None) -> Standing:
    found = {item.quantity: item for item in standings(planned(*MOCK, *overrides), model, scenario or Scenario())}
    return found[quantity]


def test_what_was_measured_under_these_settings_is_calibrated():
    assert {item.kind for item in standings(planned(*MOCK), small(), Scenario())} == {"calibrated"}


def test_another_setting_that_a_quantity_depends_on_makes_it_an_extrapolation():
    found = standing(Quantity.ROLLOUT, small(), "schedule.mode=async", "schedule.max_age=1")
    assert found == Standing(Quantity.ROLLOUT, "extrapolated", "schedule.mode is async, not sync")
    assert standing(Quantity.UPDATE, small(), "schedule.mode=async", "schedule.max_age=1").kind == "calibrated"


@pytest.mark.parametrize(("prompts", "kind"), [(4, "calibrated"), (16, "calibrated"), (3, "extrapolated"),
                                               (17, "extrapolated")])
def test_a_batch_is_calibrated_between_the_smallest_and_the_largest_that_was_measured(prompts, kind):
    found = standing(Quantity.ROLLOUT, small(), f"grpo.prompts_per_step={prompts}")
    assert found.kind == kind and (not found.why) == (kind == "calibrated")


def test_groups_of_another_size_are_calibrated_where_the_batch_is():
    found = standing(Quantity.ROLLOUT, small(), "grpo.generations_per_prompt=8")
    assert found.kind == "calibrated"
    found = standing(Quantity.ROLLOUT, small(), "grpo.generations_per_prompt=32")
    assert found.why == "128 rollouts a step, not 16 to 64"


def test_a_setting_that_the_profile_lacks_differs():
    model = small(like={"generator.workers": 24}, needs={Quantity.REFIT: ("generator.workers",)})
    assert standing(Quantity.REFIT, model).why == "generator.workers is unset, not 24"


def test_of_many_differences_a_few_are_said_and_the_others_counted():
    names = tuple(f"trainer.setting_{number}" for number in range(5))
    model = small(like=dict.fromkeys(names, 1), needs={Quantity.UPDATE: names})
    assert standing(Quantity.UPDATE, model).why.endswith("trainer.setting_2 is unset, not 1, and 2 more")


def test_another_kind_of_gpu_is_said_first_and_never_only_counted():
    names = (*(f"trainer.setting_{number}" for number in range(5)), "hardware.gpu", "grpo.prompts_per_step")
    model = small(like={**dict.fromkeys(names, 1), "hardware.gpu": "GB300"}, needs={Quantity.UPDATE: names},
                  rows=(1, 2))
    why = standing(Quantity.UPDATE, model).why
    assert why.startswith("hardware.gpu is unset, not GB300, and taken to be as fast, 16 rollouts a step, not 1 to 2")
    assert why.endswith("and 4 more")


def test_what_is_scaled_is_said_however_many_settings_differ():
    names = tuple(f"trainer.setting_{number}" for number in range(5))
    model = small(like=dict.fromkeys(names, 1), needs={Quantity.UPDATE: names})
    found = standing(Quantity.UPDATE, model, scenario=Scenario(scales={Quantity.UPDATE: 2.0}))
    assert found.why.startswith("scaled by 2, ")


def test_a_law_that_is_a_guess_is_assumed_whatever_the_settings():
    model = small(assumed={"refit": "nobody knows"})
    assert standing(Quantity.REFIT, model) == Standing(Quantity.REFIT, "assumed", "nobody knows")
    scaled = standing(Quantity.REFIT, model, scenario=Scenario(scales={Quantity.REFIT: 2.0}))
    assert scaled == Standing(Quantity.REFIT, "assumed", "nobody knows; scaled by 2")


def test_a_guess_inside_a_law_counts_only_where_the_settings_differ():
    model = small(assumed={"train.shares": "a rollout's parts are a guess", "assumptions.load_requests": "so is load"})
    assert standing(Quantity.ROLLOUT, model).kind == "calibrated"
    found = standing(Quantity.ROLLOUT, model, "schedule.mode=async", "schedule.max_age=1")
    assert (found.kind, found.inside) == ("extrapolated", ("a rollout's parts are a guess", "so is load"))


@pytest.mark.parametrize(("scenario", "moved"), [
    (Scenario(scales={Quantity.UPDATE: 0.5}), {Quantity.UPDATE}),
    (Scenario(trainer_gpus=2.0), {Quantity.UPDATE, Quantity.LOG_PROBABILITIES}),
    (Scenario(engines=0.5), {Quantity.ROLLOUT, Quantity.VALIDATION}),
    (Scenario(decoding=2.0), {Quantity.ROLLOUT, Quantity.VALIDATION}),
    (Scenario(passes_at=2), set()),
])
def test_what_is_taken_otherwise_than_measured_is_an_extrapolation(scenario, moved):
    found = standings(planned(*MOCK), varied(), scenario)
    assert {item.quantity for item in found if item.kind == "extrapolated"} == moved


def test_only_what_takes_time_in_this_plan_has_a_standing():
    def quantities(model, *overrides):
        return {item.quantity for item in standings(planned(*overrides), model, Scenario())}

    assert quantities(varied(), *MOCK) == set(Quantity) - {Quantity.DRIVER, Quantity.SHUTDOWN}
    assert Quantity.SHUTDOWN in quantities(small(shutdown=Recorded(values=(2.0,))), *MOCK)
    never = (*MOCK, "validation.start_at=100", "validation.metric=off", "validation.target=off",
             "checkpoint.period=0")
    assert quantities(small(), *never) == {Quantity.START, Quantity.ROLLOUT, Quantity.LOG_PROBABILITIES,
                                           Quantity.UPDATE, Quantity.REFIT}
    assert Quantity.CHECKPOINT in quantities(small(), *DEFERRED)


def test_checkpoints_that_nobody_measured_are_assumed_by_their_size():
    sizes = {"weights_bytes": 8e11, "full_bytes": 2.4e12, "bytes_per_s": 4e9}
    model = small(checkpoint=None, assumptions=sizes)
    assert standing(Quantity.CHECKPOINT, model).why == "none was measured: taken as 2,400 GB at 4 GB/s"
    deferred = {item.quantity: item for item in standings(planned(*DEFERRED), model, Scenario())}
    assert deferred[Quantity.CHECKPOINT].why == "none was measured: taken as 800 GB at 4 GB/s"
    weights = model.model_copy(update={"checkpoint_weights": Lognormal(median=4.0)})
    deferred = {item.quantity: item for item in standings(planned(*DEFERRED), weights, Scenario())}
    assert deferred[Quantity.CHECKPOINT].kind == "calibrated"
    assert standing(Quantity.CHECKPOINT, weights).kind == "assumed"


def test_a_guess_about_weights_alone_counts_where_weights_alone_are_written():
    model = small(checkpoint=Recorded(values=(4.0,)), assumed={"checkpoint_weights": "as long as a whole one"})
    assert standing(Quantity.CHECKPOINT, model).kind == "calibrated"
    deferred = {item.quantity: item for item in standings(planned(*DEFERRED), model, Scenario())}
    assert deferred[Quantity.CHECKPOINT] == Standing(Quantity.CHECKPOINT, "assumed", "as long as a whole one")


def test_steps_that_no_log_had_are_an_extrapolation():
    model = varied(train=(ROLLOUTS,) * 4)  # 3 blocks of 8 prompts: 6 steps of 4
    assert {item.kind for item in standings(planned(*MOCK), model, Scenario())} == {"calibrated"}
    found = {item.quantity: item for item in standings(planned(*MOCK), model, Scenario(passes_at=6))}
    assert found[Quantity.ROLLOUT].why == "steps after 4 were in no log and are taken to be like that one"
    assert found[Quantity.STALLS].kind == "calibrated"
    longer = planned(*DEFERRED, "grpo.max_steps=8")  # trains to its end, whatever passes
    found = {item.quantity: item for item in standings(longer, model, Scenario())}
    assert found[Quantity.STALLS].why.startswith("prompts after step 6 were in no log")
    assert found[Quantity.ROLLOUT].kind == "extrapolated" and found[Quantity.UPDATE].kind == "calibrated"


def test_of_stalls_that_logs_have_only_as_one_of_two_it_is_said_that_which_one_is_a_guess():
    stalls = varied().stalls.model_copy(update={"paired": 1})  # of 3 blocks of 8 prompts
    model = varied().model_copy(update={"stalls": stalls})
    assert standing(Quantity.STALLS, model).kind == "calibrated"
    found = standing(Quantity.STALLS, model, scenario=Scenario(passes_at=6))
    assert found.why == "of prompts after step 4 it is a guess which ones stall"
    longer = {item.quantity: item for item in standings(planned(*DEFERRED, "grpo.max_steps=8"), model, Scenario())}
    assert longer[Quantity.STALLS].why == (
        "of prompts after step 4 it is a guess which ones stall; prompts after step 6 were in no log and are taken to "
        "stall as the first ones did")
    found = standing(Quantity.STALLS, model, "grpo.prompts_per_step=16", scenario=Scenario(passes_at=2))
    assert found.why == "prompts after step 1 were in no log and are taken to stall as the first ones did"


@pytest.fixture(scope="module")
def reference() -> Callable[..., dict[Quantity, Standing]]:
    """``reference(settings)`` is what is known under the conditions of the logs, but for these settings."""
    (model,) = packaged()
    plan = planned(*model.conditions["256"], "checkpoint.final=true", profile="gb300-256")

    def known(settings: Mapping[str, Any]) -> dict[Quantity, Standing]:
        changed = replace(plan, resolved=deepcopy(dict(plan.resolved)))
        for key, value in settings.items():
            *sections, name = key.split(".")
            section: Any = reduce(getitem, sections, changed.resolved)
            section[name] = value
        return {item.quantity: item for item in standings(changed, model, Scenario())}

    return known


def test_under_the_conditions_of_its_logs_the_reference_is_calibrated_but_for_what_they_do_not_have(reference):
    assert {quantity: item.kind for quantity, item in reference({}).items()} == GB300


@pytest.mark.parametrize(("setting", "value", "moved"), [
    ("limits.rollout_s", 100.0, SERVING), ("limits.rollout_retries", 20, SERVING),
    ("agent.agent_timeout_s", 400.0, SERVING), ("validation.sampling.max_tokens", 100, {Quantity.VALIDATION}),
    ("validation.max_tasks", 251, {Quantity.VALIDATION}), ("trainer.recompute", "none", TRAINING),
    ("refit.chunk_bytes", 1000, {Quantity.REFIT, Quantity.FIRST_STEP}),
    ("schedule.max_age", 2, ROLLING | {Quantity.DRIVER}), ("trainer.learning_rate", 1e-3, set())])
def test_a_setting_that_the_logs_did_not_have_extrapolates_what_it_bears_on(reference, setting, value, moved):
    found = reference({setting: value})
    assert {quantity for quantity, item in found.items() if item.kind == "extrapolated"} == moved
    assert all(f"{setting} is " in item.why for quantity, item in found.items() if quantity in moved)


def test_an_evaluation_of_which_nothing_was_measured_is_an_extrapolation():
    found = {item.quantity: item for item in standings(planned(*DEFERRED), small(), Scenario())}
    assert found[Quantity.VALIDATION].why.startswith("an evaluation's start-up is assumed to be the training's")
    assert found[Quantity.START].kind == "calibrated"
