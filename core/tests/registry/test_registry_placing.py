"""Where workers sit: what is asked of the hardware, what a fabric reaches, and how that looks from the hosts."""

from __future__ import annotations

import json

import pytest

from grpo_bench.contract import Need, PlanError, Role
from grpo_bench.contract.hosts import Span
from grpo_bench.registry import make_plan, resolve, survey

SPREAD = """
from grpo_bench.contract import Capabilities, LaunchForm, Need, Placement, Plugin, Role, Settings

class Config(Settings):
    workers: int = 3

class Cluster:
    def __init__(self, context):
        pass
    def describe(self):
        return {"domains": {"x": ["a", "b"], "y": ["c", "d"]}}
    def form(self):
        return LaunchForm()

    def place(self, needs):
        asked = {role: (need.workers, need.gpus, dict(need.groups)) for role, need in needs.items()}
        hosts = {"trainer": ("a", "a", "c"), "generator": ("b", "d"), "rollout": ("a",)}
        return {role: Placement(workers=1 if role == "rollout" else need.workers, nodes=hosts[role],
                                env={"ASKED": repr(asked)}) for role, need in needs.items()}

def needs(config):
    return Need(config.workers, 1, {"tensor": ((0, 1),), "data": ((0, 2), (1, 2))})

def engines(config):
    return Need(1, 2)

hardware = Plugin("spread", Role.HARDWARE, "for tests", Config, __name__ + ":Cluster")
trainer = Plugin("wanting", Role.TRAINER, "for tests", Config, "none:none", needs=__name__ + ":needs",
                 capabilities=Capabilities(sends=frozenset({"shared"})))
generator = Plugin("wanting", Role.GENERATOR, "for tests", Config, "none:none", needs=__name__ + ":engines",
                   capabilities=Capabilities(receives=frozenset({"shared"}), sampling=frozenset({"temperature"})))
near = Plugin("near", Role.FABRIC, "for tests", Config, "none:none")
far = Plugin("far", Role.FABRIC, "for tests", Config, "none:none", capabilities=Capabilities(hosts=True))
"""
ALL = ("hardware.use=spread", "trainer.use=wanting", "generator.use=wanting", "fabric.use=far")


@pytest.fixture
def spread(bench):
    bench.distribution("test-spread", {"hardware": {"spread": "hardware"}, "trainer": {"wanting": "trainer"},
                                       "generator": {"wanting": "generator"}, "fabric": {"near": "near", "far": "far"}},
                       SPREAD)
    return bench


def test_plugins_say_what_their_workers_need(spread) -> None:
    plan = make_plan(resolve("base", overrides=ALL))
    assert plan.needs == {"trainer": Need(3, 1, {"tensor": ((0, 1),), "data": ((0, 2), (1, 2))}),
                          "generator": Need(1, 2), "rollout": Need()}
    assert plan.placements["trainer"].env["ASKED"] == repr({
        "trainer": (3, 1, {"tensor": ((0, 1),), "data": ((0, 2), (1, 2))}), "generator": (1, 2, {}),
        "rollout": (0, 0, {})})


def test_a_plugin_that_says_nothing_needs_its_workers(bench) -> None:
    plan = make_plan(resolve("base", overrides=("trainer.workers=5", "rollout.workers=4")))
    assert (plan.needs["trainer"], plan.needs["generator"], plan.needs["rollout"]) == (Need(5), Need(), Need(4))


def test_rollout_workers_sit_beside_the_engines_unless_they_are_counted(spread) -> None:
    assert make_plan(resolve("base", overrides=ALL)).placements["rollout"].nodes == ("b",)


def test_a_fabric_that_does_not_reach_the_hosts_is_refused(spread) -> None:
    near = resolve("base", overrides=(*ALL, "fabric.use=near"))
    for planned in (survey, make_plan):
        with pytest.raises(PlanError, match="fabric 'near' starts workers on one host only, and they are placed on 4"):
            planned(near)


def test_a_part_without_work_needs_neither_place_nor_environment(spread) -> None:
    plan = make_plan(resolve("base", overrides=ALL), idle={Role.TRAINER: {"opt_name": "adamw"}})
    assert plan.placements.keys() == plan.needs.keys() == {"generator", "rollout"}
    assert plan.parts[Role.TRAINER].facts == {"opt_name": "adamw"}


def test_the_plan_says_who_is_where_and_how_far_groups_reach(spread) -> None:
    plan = make_plan(resolve("base", overrides=ALL))
    assert plan.layout.spans() == (Span("trainer", "tensor", 1, 2, 1, 1, 0), Span("trainer", "data", 2, 2, 2, 2, 2),
                                   Span("generator", "worker", 1, 1, 2, 2, 1))
    found = json.loads(json.dumps(plan.to_json()))
    assert [(host["name"], host["domain"], host["ranks"]) for host in found["layout"]["hosts"]] == [
        ("a", "x", {"trainer": [0, 1]}), ("b", "x", {"generator": [0], "rollout": [0]}), ("c", "y", {"trainer": [2]}),
        ("d", "y", {"generator": [0]})]
    assert [(item["kind"], item["number"]) for item in found["layout"]["crossings"]] == [
        ("data", 0), ("data", 1), ("worker", 0)]
    assert found["spans"][1]["crossing"] == 2
    assert found["ranks"][0] == {"role": "trainer", "rank": 0, "host": "a", "domain": "x", "gpus": []}
