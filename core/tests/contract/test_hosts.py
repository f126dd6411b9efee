"""Placements seen from the hosts: seats with their GPUs, what stays together, what leaves a domain, what is drawn."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.contract import Need, Placement
from grpo_bench.contract.hosts import Layout, Seat, Span
from grpo_bench.contract.picture import Crossing, Host, Picture, Units, stretches

DOMAINS = {"x": ["a", "b"], "y": ["c", "d", "e"]}
NEEDS = {"trainer": Need(4, 1, {"tensor": ((0, 1), (2, 3)), "data": ((0, 2), (1, 3))}), "generator": Need(1, 4)}
SPREAD = Layout({
    "trainer": Placement(workers=4, nodes=("a", "a", "c", "c"), gpus=1, spares={"c": ("e",)}),
    "generator": Placement(workers=1, nodes=("b", "a"), gpus=4),
    "rollout": Placement(workers=1, nodes=("b",)),
}, NEEDS, DOMAINS)


def test_workers_take_the_gpus_of_a_host_in_turn() -> None:
    assert SPREAD.seats() == (
        Seat("trainer", 0, "a", "x", (0,)), Seat("trainer", 1, "a", "x", (1,)), Seat("trainer", 2, "c", "y", (0,)),
        Seat("trainer", 3, "c", "y", (1,)), Seat("generator", 0, "b", "x", (0, 1)),
        Seat("generator", 0, "a", "x", (2, 3)), Seat("rollout", 0, "b", "x", ()))


def test_units_are_the_largest_groups_that_exchange_most() -> None:
    assert SPREAD.units("trainer") == ("tensor", ((0, 1), (2, 3)))
    assert SPREAD.units("generator") == ("worker", ((0,),))
    experts = Layout({"trainer": Placement(workers=4)}, {"trainer": Need(4, 1, {
        "tensor": ((0, 1), (2, 3)), "expert": ((0, 1, 2, 3),)})})
    assert experts.units("trainer") == ("expert", ((0, 1, 2, 3),))
    alone = Layout({"trainer": Placement(workers=2)}, {"trainer": Need(2, 1, {"tensor": ((0,), (1,))})})
    assert alone.units("trainer") == ("worker", ((0,), (1,)))


def test_groups_that_leave_their_domain_are_counted_and_listed() -> None:
    assert SPREAD.spans() == (
        Span("trainer", "tensor", 2, 2, 1, 1, 0), Span("trainer", "data", 2, 2, 2, 2, 2),
        Span("generator", "worker", 1, 1, 2, 1, 0))
    assert SPREAD.crossings() == (Crossing("trainer", "data", 0, (0, 2), ("x", "y")),
                                  Crossing("trainer", "data", 1, (1, 3), ("x", "y")))
    assert SPREAD.picture().crossed == ["trainer data groups 0-1 between x and y"]


def test_the_picture_has_every_host_and_says_what_its_letters_mean() -> None:
    picture = SPREAD.picture()
    assert picture.hosts[:2] == (
        Host("a", "x", {"trainer": (0, 1), "generator": (0,)}, {"trainer": (0,), "generator": (0,)}, False),
        Host("b", "x", {"generator": (0,), "rollout": (0,)}, {"generator": (0,)}, False))
    assert [(host.name, host.label) for host in picture.hosts] == [
        ("a", "T0G0"), ("b", "G0r"), ("c", "T1"), ("d", "-"), ("e", "s")]
    assert picture.units == {"trainer": Units("tensor", 2, 2), "generator": Units("worker", 1, 1)}
    assert picture.legend == [
        ("trainer", "T0 to T1", "trainer's tensor groups of 2"), ("generator", "G0", "generator's worker"),
        ("rollout", "r", "rollout worker"), ("", "s", "spare"), ("", "-", "idle")]
    assert list(picture.domains) == ["x", "y"]


def test_a_picture_survives_json() -> None:
    picture = SPREAD.picture()
    again = Picture.of(json.loads(json.dumps(asdict(picture))))
    assert [host.label for host in again.hosts] == [host.label for host in picture.hosts]
    assert (again.legend, again.crossed) == (picture.legend, picture.crossed)


def test_nothing_is_drawn_of_workers_that_no_host_is_named_for() -> None:
    here = Layout({"trainer": Placement(workers=2, gpus=1), "generator": Placement()}, NEEDS, DOMAINS)
    assert (here.seats(), here.spans(), here.crossings(), here.picture()) == ((), (), (), Picture())


def test_hosts_that_the_hardware_does_not_name_are_one_domain_without_a_name() -> None:
    found = Layout({"trainer": Placement(workers=2, nodes=("a", "z"))},
                   {"trainer": Need(2, 1, {"data": ((0, 1),)})}, {"x": ["a"]})
    assert [(host.name, host.domain) for host in found.picture().hosts] == [("a", "x"), ("z", "")]
    assert found.crossings() == (Crossing("trainer", "data", 0, (0, 1), ("x", "")),)


def test_numbers_in_a_row_are_written_short() -> None:
    assert [stretches(some) for some in ((), (4,), (0, 1, 2, 5, 7, 8))] == ["", "4", "0-2,5,7-8"]


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), workers=st.integers(1, 12), wide=st.integers(1, 3),
       gpus=st.integers(0, 8), seed=st.randoms(use_true_random=False))
def test_every_host_is_drawn_once_and_every_rank_on_hosts_of_its_own(sizes: list[int], workers: int, wide: int,
                                                                     gpus: int, seed) -> None:
    domains = {f"d{number}": [f"d{number}n{place}" for place in range(size)] for number, size in enumerate(sizes)}
    names = [name for some in domains.values() for name in some]
    wide = min(wide, len(names))
    placed = {role: tuple(name for _ in range(workers) for name in seed.sample(names, wide))
              for role in ("trainer", "generator")}
    layout = Layout({role: Placement(workers=workers, nodes=nodes, gpus=gpus * wide) for role, nodes in placed.items()},
                    {}, domains)
    hosts = layout.picture().hosts
    assert [host.name for host in hosts] == names
    assert {host.name: host.domain for host in hosts} == {name: key for key, some in domains.items() for name in some}
    for role, nodes in placed.items():
        drawn = Counter((host.name, rank) for host in hosts for rank in host.ranks.get(role, ()))
        assert drawn == Counter((name, at // wide) for at, name in enumerate(nodes))
    taken = Counter((seat.host, gpu) for seat in layout.seats() for gpu in seat.gpus)
    assert set(taken.values()) <= {1} and taken.total() == 2 * workers * gpus * wide
