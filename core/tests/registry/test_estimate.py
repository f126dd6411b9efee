"""How long a run may take: what is counted, how often, and what of it fits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from grpo_bench.contract import Pace
from grpo_bench.registry import make_plan, resolve
from grpo_bench.registry.estimate import Duration, Estimate, Fit, estimated, fit

PACE = Pace((10, 20), (5, 6), (1, 2), (3, 4), (100, 200), 300, "somewhere")
RULES = """
from grpo_bench.contract import Pace, Plugin, Role, Settings

class Config(Settings):
    known: bool = True

class Rules:
    def __init__(self, context):
        pass
    def check(self, profile):
        return []
    def should_validate(self, step, max_steps):
        return step >= 9

def pace(profile):
    known, steps = profile["ruleset"]["known"], profile["grpo"]["max_steps"]
    return Pace((1, 2), (3, 4), (5, 6), (7, 8), (9, 10), 0, f"of {steps} steps") if known else None

ruleset = Plugin("timed", Role.RULESET, "for tests", Config, __name__ + ":Rules", pace=__name__ + ":pace")
"""


def estimate_of(due: list[int], **sections: dict[str, Any]) -> Estimate:
    profile = resolve("base").profile
    changed = {name: getattr(profile, name).model_copy(update=values) for name, values in sections.items()}
    return estimated(PACE, profile.model_copy(update=changed), due)


@pytest.fixture(autouse=True)
def _registry(bench) -> None:
    """Ten steps, no target, no checkpoints."""


NONE = {"period": 0, "final": False}


def test_a_training_is_its_first_step_and_the_others() -> None:
    found = estimate_of([], checkpoint=NONE)
    assert (found.start, found.training) == (Duration(10, 20), Duration(5 + 9, 6 + 18))
    assert (found.checkpoints, found.evaluation) == (Duration(0, 0), Duration(0, 0))
    assert found.whole == found.until_trained == Duration(24, 44)
    assert (found.wall_s, found.source, found.assumed) == (300, "somewhere", {"training": "to step 10"})


def test_weights_that_wait_for_a_deferred_evaluation_are_all_written_and_at_best_one_is_evaluated() -> None:
    found = estimate_of([8, 9, 10], checkpoint=NONE, validation={"deferred": True, "metric": "pass_k", "target": 0.5})
    assert found.training == Duration(14, 24) and found.checkpoints == Duration(9, 12)
    assert found.evaluation == Duration(100 + 10, 3 * 200 + 20)
    assert found.assumed == {
        "training": "to step 10", "checkpoints": "3 of them",
        "evaluation": "1 to 3 validations, after a start of its own; at best the first meets the target"}


def test_a_run_that_validates_meanwhile_may_end_at_the_first_validation() -> None:
    target = {"metric": "pass_k", "target": 0.5}
    found = estimate_of([4, 8], validation={**target, "at_start": True}, checkpoint={"period": 2, "final": True})
    assert found.training == Duration(5 + 3, 6 + 18)
    assert found.evaluation == Duration(2 * 100, 3 * 200)
    assert found.checkpoints == Duration(3 * 3, 6 * 4)
    assert found.assumed["training"] == "to step 4 at best, 10 at worst"
    assert found.assumed["checkpoints"] == "3 to 6 of them, each as long as the weights alone"


def test_without_a_target_every_validation_takes_place() -> None:
    found = estimate_of([4, 8], checkpoint=NONE, validation={"metric": None, "target": None})
    assert (found.training, found.evaluation) == (Duration(14, 24), Duration(200, 400))
    assert found.assumed["evaluation"] == "2 validations"


def test_what_fits() -> None:
    needed = Duration(10, 20)
    assert [fit(needed, seconds) for seconds in (20, 19, 10, 9)] == [
        Fit.FITS, Fit.MAY_NOT, Fit.MAY_NOT, Fit.DOES_NOT]


def test_a_ruleset_knows_the_pace_and_the_validations(bench) -> None:
    bench.distribution("test-timed", {"ruleset": {"timed": "ruleset"}}, RULES)
    timed = ("ruleset.use=timed", "checkpoint.final=false", "validation.deferred=true", "generator.use=steady")
    plan = make_plan(resolve("base", overrides=timed))
    assert plan.estimate is not None and plan.estimate.source == "of 10 steps"
    assert plan.estimate.checkpoints == Duration(2 * 7, 2 * 8)
    data = json.loads(json.dumps(plan.to_json()))["estimate"]
    assert data["training"] == {"least": 48, "most": 58} and data["fit"] == {}
    assert make_plan(resolve("base", overrides=(*timed, "ruleset.known=false"))).estimate is None
    replaced = make_plan(resolve("base", overrides=timed), pace=PACE).estimate
    assert replaced is not None and replaced.source == "somewhere"
    assert replaced.to_json()["fit"] == {"until_trained": "fits", "whole": "may not fit"}


def test_without_a_pace_there_is_no_estimate(bench) -> None:
    assert make_plan(resolve("base")).estimate is None
    found = make_plan(resolve("base", overrides=["validation.period=4"]), pace=PACE).estimate
    assert found is not None and found.evaluation == Duration(200, 400)
