"""Which hosts there are, what is placed on them, and who takes the place of a lost one: without a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest
from grpo_bench_fabric_ray.hosts import (
    Host, absent, counts, hosts_of, lives, places, some, successor, unfit, wanted,
)
from grpo_bench_fabric_ray.opening import differences, look, stand_ins
from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.contract import Placement

NAMES = [f"n{number}" for number in range(6)]


def node(name, *, alive=True, gpus=4.0, labels=None, node_id=None):
    return {"NodeID": node_id or f"id-{name}", "NodeManagerHostname": name, "NodeManagerAddress": f"10.0.0.{name[1:]}",
            "Resources": {"GPU": gpus} if gpus else {}, "Labels": labels or {}, "Alive": alive}


def known(*names, dead=(), domain=""):
    return {name: Host(name, f"id-{name}", "10.0.0.1", 4, domain, name not in dead) for name in names}


def test_a_node_is_called_by_its_label_else_by_its_hostname():
    found = hosts_of([node("n1"), node("n2", gpus=0, labels={"grpo-bench-node": "rack7", "grpo-bench-domain": "d"})])
    assert found == {"n1": Host("n1", "id-n1", "10.0.0.1", 4, "", True),
                     "rack7": Host("rack7", "id-n2", "10.0.0.2", 0, "d", True)}


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_nodes_of_one_name_the_living_one_counts(order):
    nodes = [node("n1", alive=False, node_id="old"), node("n1", node_id="new")][::order]
    assert hosts_of(nodes)["n1"].node == "new"


@pytest.mark.parametrize(("placement", "hosts", "gpus"), [
    (Placement(workers=2, gpus=3), [("here",), ("here",)], 3),
    (Placement(workers=2, nodes=("a", "b")), [("a",), ("b",)], 0),
    (Placement(workers=2, nodes=("a", "b", "c", "d"), gpus=8), [("a", "b"), ("c", "d")], 4)])
def test_each_worker_has_its_hosts_and_an_equal_share_of_gpus_on_each(placement, hosts, gpus):
    assert places(placement, "here") == hosts
    assert placement.gpus_per_host == gpus


def test_what_all_groups_want_of_a_host_is_counted_together():
    trainer = Placement(workers=4, nodes=("a", "a", "b", "b"), gpus=1)
    assert wanted([trainer, Placement(workers=1, nodes=("b", "c"), gpus=4), Placement(workers=1, nodes=("d",))],
                  "here") == {"a": 2, "b": 4, "c": 2, "d": 0}


def test_what_is_missing_is_listed_host_by_host():
    placements = {"trainer": Placement(workers=3, nodes=("n0", "n1", "n2"), gpus=8),
                  "generator": Placement(workers=1, nodes=("n3", "n4"))}
    there = known("n0", "n1", "n3", "n4", dead=("n1",))
    there["n0"] = replace(there["n0"], gpus=8)
    there["n3"], there["n4"] = replace(there["n3"], domain="d0"), replace(there["n4"], domain="d1")
    assert absent(placements, there, "n0") == ["n1", "n2"]
    assert counts(placements, there, "n0") == "3 of 5 hosts, 8 of 24 GPUs"
    assert unfit(placements, there, "n0") == [
        "generator 0 sits on n3, n4, which the cluster says are in several network domains: d0, d1"]
    there["n0"] = replace(there["n0"], gpus=2)
    assert unfit(placements, there, "n0")[0] == "host n0 has 2 GPUs, and 8 are placed on it"
    assert counts({"trainer": Placement()}, there, "n0") == "1 of 1 hosts"


def test_many_hosts_are_not_all_named():
    assert some(NAMES) == "n0, n1, n2, n3, n4, n5"
    assert some([str(number) for number in range(20)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 12 more"


def test_the_first_living_spare_takes_the_place():
    placement = Placement(workers=1, nodes=("n0",), gpus=4, spares={"n0": ("n1", "n2", "n3"), "n9": ("n4",)})
    there = known(*NAMES, dead=("n0", "n1"))
    assert successor("n0", placement, there, (), {}) == "n2"
    assert successor("n0", placement, there, ("n2",), {}) == "n3"
    assert successor("n0", placement, there, ("n2", "n3"), {}) is None
    assert successor("n5", placement, there, (), {}) is None


def test_a_worker_without_gpus_goes_to_the_emptiest_host_of_its_group():
    placement = Placement(workers=3, nodes=("n0", "n1", "n2"))
    there = known(*NAMES, dead=("n0",))
    assert successor("n0", placement, there, (), {"n1": 2, "n2": 1, "n5": 0}) == "n2"
    assert successor("n0", replace(placement, spares={"n0": ("n4",)}), there, (), {}) == "n4"
    assert successor("n0", placement, known(*NAMES, dead=("n0", "n1", "n2")), (), {}) is None


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES)), st.lists(st.sampled_from(NAMES), unique=True),
       st.booleans())
def test_a_successor_lives_and_is_free(dead, taken, spares, gpus):
    placement = Placement(workers=3, nodes=("n0", "n1", "n2"), gpus=3 if gpus else 0, spares={"n0": tuple(spares)})
    there = known(*NAMES, dead=dead | {"n0"})
    found = successor("n0", placement, there, taken, {})
    if found is None:
        assert all(not lives(name, there) or name in taken for name in spares)
        assert gpus or not any(lives(name, there) for name in placement.nodes)
    else:
        assert lives(found, there)
        assert (found in spares and found not in taken) or (not gpus and found in placement.nodes)


def test_a_host_that_died_is_stood_in_for_at_once_and_one_that_never_came_in_the_end():
    spares = {"n0": ("n4",), "n1": ("n4", "n5")}
    placements = {"trainer": Placement(workers=2, nodes=("n0", "n1"), gpus=8, spares=spares),
                  "generator": Placement(workers=1, nodes=("n2",), spares={"n2": ("n5",)})}
    there = known("n0", "n2", "n4", "n5", dead=("n0",))
    assert stand_ins(placements, there, "n0", late=False) == {"n0": "n4"}
    assert stand_ins(placements, there, "n0", late=True) == {"n0": "n4", "n1": "n5"}
    assert stand_ins(placements, known("n2", "n4", "n5"), "n0", late=False) == {}


def test_workers_without_gpus_are_not_moved_together_before_the_start():
    placements = {"rollout": Placement(workers=2, nodes=("n0", "n1"))}
    assert stand_ins(placements, known("n0", "n1", dead=("n0",)), "n1", late=True) == {}


def test_a_host_that_sees_and_has_what_the_engine_does_is_fine(tmp_path):
    token = tmp_path / "workers" / ".seen"
    token.parent.mkdir()
    token.write_text("seen")
    mine = look(str(token), ("grpo-bench",))
    assert differences("n1", token, look(str(token), ("grpo-bench",)), mine) == []
    blind = {"text": look(str(tmp_path / "nowhere"), ())["text"], "python": "3.99", "versions": {"grpo-bench": "0"}}
    lines = differences("n1", token, blind, mine)
    assert lines[0].startswith(f"host n1 does not see the run's folder {tmp_path}")
    assert lines[1:] == [f"host n1 has Python 3.99, the engine {mine['python']}",
                         f"host n1 has grpo-bench 0, the engine {mine['versions']['grpo-bench']}"]
    assert Path(token).exists()
