"""Which packaged model belongs to a plan."""

from __future__ import annotations

import pytest
from grpo_bench_sim import choosing
from grpo_bench_sim.choosing import model_for, packaged

from grpo_bench.contract import InputError

from .small import planned, small

POLICY = "package:grpo_bench_rules_mlperf/qwen35_397b_a17b.json"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch):
    def have(*found) -> None:
        monkeypatch.setattr(choosing, "packaged", lambda: list(found))
    return have


def test_the_model_of_the_plans_policy_is_taken(models):
    other = small(name="other", like={"policy.config": "other.json"})
    its = small(name="its", like={"policy.config": POLICY})
    models(other, its)
    assert model_for(planned(profile="gb300-256")) is its


def test_of_several_the_one_with_most_of_the_plans_settings_is_taken(models):
    here = {"policy.config": POLICY, "trainer.workers": 64}
    near, far = (small(name=name, like=here | {"generator.workers": count}) for name, count in (("b", 24), ("a", 8)))
    models(far, near)
    assert model_for(planned(profile="gb300-256")) is near


def test_a_policy_without_a_model_is_refused_with_what_to_do(models):
    models(small(name="other", like={"policy.config": POLICY}), small(name="nothing", like={}))
    with pytest.raises(InputError) as caught:
        model_for(planned())
    assert "profile 'mock'" in caught.value.message and "other, nothing" in caught.value.message
    assert "--calibrate RUN" in caught.value.hint


def test_every_packaged_model_can_be_read_and_names_its_policy():
    assert all(model.like["policy.config"] for model in packaged())
