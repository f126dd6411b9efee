"""Layouts hold what they promise, for any needs on any cluster, and the benchmark gets the one that it should."""

from __future__ import annotations

from itertools import chain

import pytest
from grpo_bench_hw_gb300 import Cluster, Domain, Gb300Config, Gpu, Layout, lay_out
from grpo_bench_hw_gb300.cluster import described
from hypothesis import given, settings, strategies as st

from grpo_bench.contract import Need, PlanError

BENCHMARK = {
    "trainer": Need(64, 1, {
        "tensor": tuple(tuple(range(start, start + 4)) for start in range(0, 64, 4)),
        "expert": (tuple(range(32)), tuple(range(32, 64))),
        "pipeline": tuple((rank, rank + 32) for rank in range(32))}),
    "generator": Need(24, 8),
}


def cluster_of(*sizes: int, gpus: int = 4) -> Cluster:
    return Cluster(tuple(Domain(f"d{number}", tuple(f"d{number}n{node}" for node in range(size)))
                         for number, size in enumerate(sizes)), gpus)


def trainer(tensor: int, expert: int, stages: int, replicas: int) -> Need:
    """A policy of ``stages`` stages, each of ``replicas`` blocks of the larger of both groups."""
    block = max(tensor, expert)
    ranks = block * stages * replicas
    groups = {kind: tuple(tuple(range(start, start + size)) for start in range(0, ranks, size))
              for kind, size in (("tensor", tensor), ("expert", expert)) if size > 1}
    return Need(ranks, 1, groups)


def domains_of(cluster: Cluster, layout: Layout, role: str, workers: tuple[int, ...]) -> set[str]:
    where = cluster.domain_of()
    return {where[gpu.node] for worker in workers for gpu in layout.places[role][worker]}


def test_64_nodes_are_16_for_the_policy_and_48_for_24_engines() -> None:
    cluster = described(Gb300Config(policy_nodes=16))
    layout = lay_out(BENCHMARK, cluster, 16)
    policy, engines = (set(chain(*layout.nodes(role))) for role in ("trainer", "generator"))
    assert (len(policy), len(engines), len(layout.places["generator"])) == (16, 48, 24)
    assert policy == set(cluster.domains[0].nodes)
    first, second = (domains_of(cluster, layout, "trainer", group) for group in BENCHMARK["trainer"].groups["expert"])
    assert first == second == {"rack0"}
    assert layout.nodes("trainer")[:8] == (("rack0-node00",),) * 4 + (("rack0-node01",),) * 4
    assert layout.nodes("generator")[0] == ("rack1-node00", "rack1-node01")
    assert layout.idle == ()


def test_nodes_that_no_whole_segment_has_are_not_there() -> None:
    assert [len(domain.nodes) for domain in described(Gb300Config()).domains] == [16, 16, 16, 16]
    assert [len(domain.nodes) for domain in described(Gb300Config(segment=18)).domains] == [18, 18, 18, 10]
    assert [len(domain.nodes) for domain in described(Gb300Config(nodes=3, segment=2)).domains] == [3]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, dict[str, Need], int]:
    gpus = draw(st.sampled_from([1, 2, 4, 8]))
    cluster = cluster_of(*draw(st.lists(st.integers(1, 18), min_size=1, max_size=6)), gpus=gpus)
    powers = st.sampled_from([1, 2, 4, 8, 16, 32])
    needs = {"trainer": trainer(draw(powers), draw(powers), draw(st.integers(1, 3)), draw(st.integers(1, 3))),
             "generator": Need(draw(st.integers(0, 24)), draw(powers))}
    return cluster, needs, draw(st.integers(0, len(cluster.nodes) - 1))


@settings(max_examples=200, deadline=None)
@given(cases())
def test_whatever_is_placed_keeps_the_constraints(case: tuple[Cluster, dict[str, Need], int]) -> None:
    cluster, needs, policy_nodes = case
    try:
        layout = lay_out(needs, cluster, policy_nodes)
    except PlanError:
        return
    learning, serving = layout.places["trainer"], layout.places["generator"]
    assert len(learning) == needs["trainer"].workers
    assert len(serving) == needs["generator"].workers or needs["generator"].workers == 0 < len(serving)
    assert {len(gpus) for gpus in learning} == {1} and {len(gpus) for gpus in serving} == {needs["generator"].gpus}
    seats = [*chain(*learning), *chain(*serving), *layout.idle]
    assert sorted(seats) == sorted(Gpu(node, index) for node in cluster.nodes for index in range(cluster.gpus))
    assert not {gpu.node for gpu in chain(*learning)} & {gpu.node for gpu in chain(*serving)}
    for worker in range(len(serving)):
        assert len(domains_of(cluster, layout, "generator", (worker,))) == 1
        assert len(layout.nodes("generator")[worker]) == -(-needs["generator"].gpus // cluster.gpus)
    for kind in ("tensor", "expert"):
        for group in needs["trainer"].groups.get(kind, ()):
            assert len(domains_of(cluster, layout, "trainer", group)) == 1
    for group in needs["trainer"].groups.get("tensor", ()):
        nodes = {learning[rank][0].node for rank in group}
        assert len(nodes) == -(-len(group) // cluster.gpus)
    if policy_nodes:
        assert len({gpu.node for gpu in chain(*learning)}) <= policy_nodes
        assert len({gpu.node for gpu in chain(*serving)}) <= len(cluster.nodes) - policy_nodes
    assert lay_out(needs, cluster, policy_nodes) == layout


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 12),
       st.integers(1, 4))
def test_what_fits_is_never_refused(sizes: list[int], blocks: int, per_block: int, engines: int,
                                    per_engine: int) -> None:
    """Against trying every way to deal the policy's blocks out to domains."""
    def possible(rest: list[int], left: int, room: int) -> bool:
        if not rest:
            return left == 0 and room >= engines
        return any(possible(rest[1:], left - share, room + (rest[0] - share * per_block) // per_engine)
                   for share in range(min(left, rest[0] // per_block) + 1))

    needs = {"trainer": trainer(1, 4 * per_block, 1, blocks), "generator": Need(engines, 4 * per_engine)}
    try:
        lay_out(needs, cluster_of(*sizes))
        found = True
    except PlanError:
        found = False
    assert found == possible(sizes, blocks, 0)


def test_the_policy_stays_in_as_few_domains_as_possible() -> None:
    cluster = cluster_of(4, 9, 18, 8)
    layout = lay_out(BENCHMARK | {"generator": Need(4, 8)}, cluster)
    assert domains_of(cluster, layout, "trainer", tuple(range(64))) == {"d2"}


def test_a_remainder_that_engines_need_is_left_to_them() -> None:
    """Of four nodes a block of three would leave one that no engine fits on."""
    cluster = cluster_of(4, 5)
    layout = lay_out({"trainer": trainer(1, 12, 1, 1), "generator": Need(3, 8)}, cluster)
    assert domains_of(cluster, layout, "trainer", tuple(range(12))) == {"d1"}


@pytest.mark.parametrize(("needs", "sizes", "policy_nodes", "words"), [
    ({}, (64,), 8, "64 ranks take 16 nodes of 4 GPUs, and 8 of 64 are for them (see hardware.policy_nodes)"),
    ({}, (40, 8), 16, "24 engines of 8 GPUs take 48 nodes of 4 GPUs, and 32 of 48 are for them (see hardware.nodes)"),
    ({}, (4,) * 16, 16, "a group of 32 ranks takes 8 nodes, and the largest domain has 4"),
    ({}, (15, 7, 42), 16, "do not fit into the domains of 15, 7, 42 nodes beside 2 units of 8 for 64 ranks"),
    ({}, (16, 6, 42), 16, None),
    ({"generator": Need(1, 8)}, (15, 7, 7, 7), 16, "are 2 units of 8 nodes that stay inside one domain each, and "
                                                   "domains of 15, 7, 7, 7 nodes take 1"),
    ({"trainer": trainer(1, 4, 1, 1)}, (2,) + (1,) * 62, 1, "do not fit into the domains"),
    ({"generator": Need(1, 32)}, (16, 4, 4), 16, "do not fit into the domains of 16, 4, 4 nodes beside 2 units"),
    ({"trainer": trainer(3, 1, 1, 4)}, (64,), 16, None),
    ({"trainer": trainer(3, 6, 1, 4)}, (64,), 16, "tensor groups of 3 ranks do not fit onto nodes of 4 GPUs without"),
    ({"trainer": Need(8, 1, {"expert": ((0, 1, 2),)})}, (64,), 16, "blocks of 1, 3"),
])
def test_what_cannot_be_is_refused_with_what_it_breaks(needs: dict[str, Need], sizes: tuple[int, ...],
                                                       policy_nodes: int, words: str | None) -> None:
    cluster = cluster_of(*sizes)
    if words is None:
        lay_out(BENCHMARK | needs, cluster, policy_nodes)
        return
    with pytest.raises(PlanError) as caught:
        lay_out(BENCHMARK | needs, cluster, policy_nodes)
    assert words in str(caught.value)


def test_groups_that_leave_gpus_over_say_so() -> None:
    layout = lay_out({"trainer": trainer(3, 1, 1, 4), "generator": Need(2, 3)}, cluster_of(8))
    assert len(layout.idle) == 4 + 2 + 8
    assert len(set(layout.nodes("trainer"))) == 4


def test_without_a_trainer_all_nodes_are_the_generators() -> None:
    layout = lay_out({"generator": Need(0, 8)}, cluster_of(16, 3))
    assert len(layout.places["generator"]) == 9 and "trainer" not in layout.places
    assert len(layout.idle) == 4
