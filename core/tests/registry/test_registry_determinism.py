"""``deterministic = "auto"``: true where the parts allow, and a reason where they do not."""

from __future__ import annotations

import pytest

from grpo_bench.contract import PlanError
from grpo_bench.registry import Plan, make_plan, resolve

PROMISING = '''
from grpo_bench.contract import Capabilities, Plugin, Role, Settings

class Config(Settings):
    pass

trainer = Plugin("exact", Role.TRAINER, "for tests", Config, factory="none:none",
                 capabilities=Capabilities(sends=frozenset({"shared"}), deterministic=True))
generator = Plugin("exact", Role.GENERATOR, "for tests", Config, factory="none:none",
                   capabilities=Capabilities(receives=frozenset({"shared"}), refit=frozenset({"drain"}),
                                             deterministic=True))
'''


@pytest.fixture
def plan_with(bench):
    bench.distribution("test-exact", {"trainer": {"exact": "trainer"}, "generator": {"exact": "generator"}}, PROMISING)

    def plan(*overrides: str) -> Plan:
        return make_plan(resolve("base", overrides=("trainer.use=exact", *overrides)))

    return plan


def test_parts_that_promise_it_make_the_run_deterministic(plan_with) -> None:
    plan = plan_with("generator.use=exact", "deterministic=auto")
    assert (plan.profile.deterministic, plan.varying, plan.resolved["deterministic"]) == (True, "", True)


@pytest.mark.parametrize(("overrides", "why"), [
    (("generator.use=steady",), "generator 'steady' does not promise equal results for equal seeds"),
    (("generator.use=exact", "schedule.mode=async", "schedule.max_age=1"), "timing decides which weights sample what"),
])
def test_what_stands_against_it_is_told_or_refused(plan_with, overrides, why) -> None:
    plan = plan_with(*overrides, "deterministic=auto")
    assert (plan.profile.deterministic, plan.resolved["deterministic"]) == (False, False)
    assert why in plan.varying
    assert [str(item.origin) for item in plan.explained if item.key == "deterministic"] == [
        f"--set (auto: {plan.varying})"]
    with pytest.raises(PlanError, match=f"{why}, so that deterministic = true cannot hold"):
        plan_with(*overrides, "deterministic=true")


def test_it_is_not_asked_for_unless_the_profile_does(plan_with) -> None:
    plan = plan_with("generator.use=exact")
    assert (plan.profile.deterministic, plan.varying) == (False, "")
