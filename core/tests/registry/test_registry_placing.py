"""Where workers sit: what is asked of the hardware, what a fabric reaches, and how that looks from the hosts."""

from __future__ import annotations

import json

import pytest

from grpo_bench.contract import Missing, Need, Placement, Role
from grpo_bench.registry import make_plan, resolve, survey
from grpo_bench.registry.hosts import Row, Span, rows, spans

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


def test_a_fabric_that_does_not_reach_the_hosts_is_missing_another(spread) -> None:
    near = resolve("base", overrides=(*ALL, "fabric.use=near"))
    words = "it starts workers on this host only, and they are placed on 4 (choose a fabric that reaches them)"
    assert survey(near).missing == (f"fabric 'near': {words}",)
    with pytest.raises(Missing, match="placed on 4"):
        make_plan(near)


def test_a_part_without_work_needs_neither_place_nor_environment(spread) -> None:
    plan = make_plan(resolve("base", overrides=ALL), idle={Role.TRAINER: {"opt_name": "adamw"}})
    assert plan.placements.keys() == plan.needs.keys() == {"generator", "rollout"}
    assert plan.parts[Role.TRAINER].facts == {"opt_name": "adamw"}


def test_the_plan_says_who_is_where_and_how_far_groups_reach(spread) -> None:
    plan = make_plan(resolve("base", overrides=ALL))
    assert plan.rows == (Row("x", ("a",), {"trainer": 2}), Row("x", ("b",), {"generator": 1}),
                         Row("y", ("c",), {"trainer": 1}), Row("y", ("d",), {"generator": 0}))
    assert plan.spans == (Span("trainer", "tensor", 1, 2, 1, 1, 0), Span("trainer", "data", 2, 2, 2, 2, 2),
                          Span("generator", "worker", 1, 1, 2, 2, 1))
    found = json.loads(json.dumps(plan.to_json()))
    assert [row["hosts"] for row in found["hosts"]] == [["a"], ["b"], ["c"], ["d"]]
    assert found["spans"][1]["crossing"] == 2


def test_hosts_without_domains_are_one_domain_and_idle_ones_are_said() -> None:
    placements = {"trainer": Placement(workers=2, nodes=("a", "b")), "rollout": Placement(workers=3)}
    assert rows(placements, {}) == (Row("", ("a", "b"), {"trainer": 2}),)
    assert rows(placements, {"domains": {"x": ["a", "c"], "y": ["b"]}}) == (
        Row("x", ("a",), {"trainer": 1}), Row("x", ("c",), {}), Row("y", ("b",), {"trainer": 1}))
    assert spans({"trainer": Need(2, 1, {"data": ((0, 1),)})}, placements, {}) == (
        Span("trainer", "data", 1, 2, 2, 1, 0),)
