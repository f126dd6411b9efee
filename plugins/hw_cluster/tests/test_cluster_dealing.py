"""As few groups as possible reach over domains: against trying every way, on clusters small enough for that."""

from __future__ import annotations

from itertools import product

import pytest
from grpo_bench_hw_cluster.dealing import cost_of, deal, engines, links_of
from grpo_bench_hw_cluster.units import units_of
from hypothesis import given, settings, strategies as st

from grpo_bench.contract import Need


def grid(stages: int, replicas: int, block: int) -> Need:
    """Blocks of ``block`` ranks that share experts, in pipeline stages of several replicas."""
    stage, ranks = replicas * block, stages * replicas * block
    return Need(ranks, 1, {
        "expert": tuple(tuple(range(start, start + block)) for start in range(0, ranks, block)),
        "data": tuple(tuple(range(start + rank, start + stage, block)) for start in range(0, ranks, stage)
                      for rank in range(block)),
        "pipeline": tuple(tuple(range(rank, ranks, stage)) for rank in range(stage))})


def best(sizes: list[int], nodes: int, per: int, wanted: int, count: int, links: list) -> tuple[int, ...] | None:
    """The lowest cost of all ways that fit."""
    found = []
    for dealt in product(range(len(sizes)), repeat=count):
        free = [size - dealt.count(domain) * nodes for domain, size in enumerate(sizes)]
        if min(free) >= 0 and sum(left // per for left in free) >= wanted:
            found.append(cost_of(dealt, links))
    return min(found, default=None)


@settings(max_examples=150)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 2), st.integers(1, 3),
       st.integers(1, 3), st.integers(0, 6))
def test_no_other_way_crosses_less(sizes: list[int], stages: int, replicas: int, nodes: int, per: int,
                                   wanted: int) -> None:
    need = grid(stages, replicas, 4 * nodes)
    units = units_of(need, 4, 0, "rank")
    links = links_of(need, units)
    lowest = best(sizes, units.nodes, per, wanted, units.count, links)
    if sum(size // units.nodes for size in sizes) < units.count:
        assert lowest is None
        return
    dealt = deal(sizes, units, per, wanted, links)
    assert (dealt is None) == (lowest is None)
    if dealt is not None:
        assert cost_of(dealt, links) == lowest
        assert deal(sizes, units, per, wanted, links) == dealt


@pytest.mark.parametrize(("sizes", "dealt"), [
    ((8, 8), [0, 0, 1, 1]),      # a stage in each: all gradients stay inside, activations pass
    ((4, 4, 4, 4), [0, 1, 2, 3]),
    ((4, 12), [1, 1, 0, 1]),     # one stage has to be cut, the other not
    ((16, 4), [0, 0, 0, 0]),
])
def test_gradients_stay_inside_before_activations_do(sizes: tuple[int, ...], dealt: list[int]) -> None:
    need = grid(2, 2, 16)
    units = units_of(need, 4, 0, "rank")
    found = deal(sizes, units, 1, 0, links_of(need, units)) or []
    assert cost_of(found, links_of(need, units)) == cost_of(dealt, links_of(need, units))
    if len(sizes) == 2 and sizes[0] == sizes[1]:
        assert found == dealt


def test_a_large_cluster_is_dealt_out_at_once() -> None:
    """Racks of 18 for 64 blocks of 4 nodes: four in each, stage by stage."""
    need = grid(4, 16, 16)
    units = units_of(need, 4, 0, "rank")
    links = links_of(need, units)
    found = deal([18] * 20, units, 2, 50, links) or []
    assert max(map(found.count, found)) == 4 and cost_of(found, links)[0] <= 4 * 16 * 3


@pytest.mark.parametrize(("free", "per", "wanted", "bound", "taken"), [
    ([2, 16, 16], 2, 17, [False] * 3, [1, 8, 8]), ([2, 16, 16], 2, 15, [True, False, False], [0, 8, 7]),
    ([3, 3], 1, 4, [False, False], [2, 2]), ([2, 4], 1, 5, [True, False], [1, 4]),
    ([1, 1, 1], 1, 2, [False] * 3, [1, 1, 0]), ([16, 16, 2], 2, 16, [False] * 3, [8, 7, 1])])
def test_what_is_left_over_lies_where_it_helps(free: list[int], per: int, wanted: int, bound: list[bool],
                                               taken: list[int]) -> None:
    assert engines(free, per, wanted, bound) == taken
