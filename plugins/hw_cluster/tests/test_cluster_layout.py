"""Layouts hold what they promise, for any needs on any cluster."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from grpo_bench_hw_cluster import Cluster, Domain, Gpu, Layout, lay_out, replaced, stand_ins
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
    ranks, stage = block * stages * replicas, block * replicas
    groups = {kind: tuple(tuple(range(start, start + size)) for start in range(0, ranks, size))
              for kind, size in (("tensor", tensor), ("expert", expert)) if size > 1}
    if stages > 1:
        groups["pipeline"] = tuple(tuple(range(rank, ranks, stage)) for rank in range(stage))
    if replicas > 1:
        groups["data"] = tuple(tuple(range(start + rank, start + stage, block)) for start in range(0, ranks, stage)
                               for rank in range(block))
    return Need(ranks, 1, groups)


def domains_of(layout: Layout, role: str, workers: tuple[int, ...]) -> set[str]:
    where = layout.cluster.domain_of()
    return {where[gpu.node] for worker in workers for gpu in layout.places[role][worker]}


def used(layout: Layout, role: str) -> set[str]:
    return set(chain(*layout.nodes(role)))


def check(layout: Layout, needs: dict[str, Need]) -> None:
    """Everything that a layout promises, whatever the numbers of nodes were."""
    cluster, learning, serving = layout.cluster, layout.places["trainer"], layout.places["generator"]
    fit = cluster.gpus
    assert len(learning) == needs["trainer"].workers
    assert len(serving) == needs["generator"].workers or needs["generator"].workers == 0 < len(serving)
    each = needs["generator"].gpus if fit else 1
    assert {len(gpus) for gpus in learning} == {1} and {len(gpus) for gpus in serving} == {each}
    seats = [*chain(*learning), *chain(*serving)]
    assert len(set(seats)) == len(seats)
    spare = [Gpu(node, index) for node in layout.spares for index in range(fit)]
    if fit:
        assert sorted([*seats, *layout.idle, *spare]) == sorted(
            Gpu(node, index) for node in cluster.nodes for index in range(fit))
    assert not used(layout, "trainer") & used(layout, "generator") or len(cluster.nodes) == 1
    assert not (used(layout, "trainer") | used(layout, "generator")) & set(layout.spares)
    assert used(layout, "trainer") | used(layout, "generator") | set(layout.spares) == set(cluster.nodes)
    for worker, nodes in enumerate(layout.nodes("generator")):
        assert len(domains_of(layout, "generator", (worker,))) == 1
        assert len(nodes) == (-(-each // fit) if fit else 1)
        assert len({sum(gpu.node == node for gpu in serving[worker]) for node in nodes}) == 1
    for kind in ("tensor", "expert"):
        for group in needs["trainer"].groups.get(kind, ()):
            assert len(domains_of(layout, "trainer", group)) == 1
    for group in needs["trainer"].groups.get("tensor", ()) if fit else ():
        assert len({learning[rank][0].node for rank in group}) == -(-len(group) // fit)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Cluster, dict[str, Need], tuple[int, int, int]]:
    gpus = draw(st.sampled_from([0, 1, 2, 4, 8]))
    cluster = cluster_of(*draw(st.lists(st.integers(1, 18), min_size=1, max_size=6)), gpus=gpus)
    powers = st.sampled_from([1, 2, 4, 8, 16, 32])
    needs = {"trainer": trainer(draw(powers), draw(powers), draw(st.integers(1, 3)), draw(st.integers(1, 3))),
             "generator": Need(draw(st.integers(0, 24)), draw(powers))}
    total = len(cluster.nodes)
    policy = draw(st.integers(0, max(0, total - 2)))
    generation = draw(st.integers(0, max(0, total - policy - 1)))
    return cluster, needs, (policy, generation, draw(st.integers(0, max(0, total - policy - generation - 2))))


@settings(max_examples=300)
@given(cases())
def test_whatever_is_placed_keeps_the_constraints(
        case: tuple[Cluster, dict[str, Need], tuple[int, int, int]]) -> None:
    cluster, needs, (policy, generation, spare) = case
    try:
        layout = lay_out(needs, cluster, policy, generation, spare)
    except PlanError:
        return
    check(layout, needs)
    if len(cluster.nodes) > 1:
        assert len(used(layout, "trainer")) <= (policy or len(cluster.nodes))
        assert len(used(layout, "generator")) <= (generation or len(cluster.nodes) - policy)
        assert len(layout.spares) >= spare
    assert lay_out(needs, cluster, policy, generation, spare) == layout
    for lost in sorted(used(layout, "trainer") | used(layout, "generator")):
        if not stand_ins(layout, lost):
            with pytest.raises(PlanError, match=f"can take the place of {lost}"):
                replaced(layout, lost)
            continue
        after = replaced(layout, lost)
        assert lost not in after.cluster.nodes
        check(after, needs)
        assert set(after.spares) | {stand_ins(layout, lost)[0]} == set(layout.spares)


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

    if sum(sizes) == 1:
        return  # one node is shared out
    needs = {"trainer": trainer(1, 4 * per_block, 1, blocks), "generator": Need(engines, 4 * per_engine)}
    try:
        lay_out(needs, cluster_of(*sizes))
        found = True
    except PlanError:
        found = False
    assert found == possible(sizes, blocks, 0)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_a_number_of_engines_that_is_left_open_is_the_most_that_fit(sizes: list[int], per_engine: int) -> None:
    needs = {"generator": Need(0, 4 * per_engine)}
    most = sum(size // per_engine for size in sizes)
    if not most:
        with pytest.raises(PlanError):
            lay_out(needs, cluster_of(*sizes))
    else:
        assert len(lay_out(needs, cluster_of(*sizes)).places["generator"]) == most


def test_the_policy_stays_in_as_few_domains_as_possible() -> None:
    layout = lay_out(BENCHMARK | {"generator": Need(4, 8)}, cluster_of(4, 9, 18, 8))
    assert domains_of(layout, "trainer", tuple(range(64))) == {"d2"}


def test_a_remainder_that_engines_need_is_left_to_them() -> None:
    """Of four nodes a block of three would leave one that no engine fits on."""
    layout = lay_out({"trainer": trainer(1, 12, 1, 1), "generator": Need(3, 8)}, cluster_of(4, 5))
    assert domains_of(layout, "trainer", tuple(range(12))) == {"d1"}


def test_both_may_have_a_number_of_nodes() -> None:
    needs = {"trainer": Need(), "generator": Need(0, 4)}
    layout = lay_out(needs, cluster_of(16), policy_nodes=4, generation_nodes=9)
    assert len(used(layout, "trainer")) == 4 and len(used(layout, "generator")) == 9 and len(layout.spares) == 3
    rest = lay_out(needs, cluster_of(16), generation_nodes=9, spare=2)
    assert len(used(rest, "trainer")) == 5 and len(rest.spares) == 2


def test_spare_nodes_lie_where_only_they_can_help() -> None:
    """Ranks that share experts, and engines on two nodes, take a spare of their own domain only."""
    layout = lay_out(BENCHMARK, cluster_of(18, 18, 18, 18))
    where = layout.cluster.domain_of()
    assert [where[node] for node in layout.spares].count("d0") == 2 and len({where[n] for n in layout.spares}) == 4
    assert stand_ins(layout, "d0n3") == ("d0n16", "d0n17")
    assert replaced(layout, "d0n3").places["trainer"][12] == (Gpu("d0n16", 0),)


def test_a_node_that_stands_alone_takes_any_spare_the_nearest_first() -> None:
    layout = lay_out({"trainer": trainer(4, 1, 1, 2), "generator": Need(2, 4)}, cluster_of(3, 3))
    assert layout.spares == ("d0n2", "d1n2") and not layout.bound
    assert stand_ins(layout, "d1n0") == ("d1n2", "d0n2")
    with pytest.raises(PlanError, match="no idle node of the cluster can take the place of d0n0"):
        replaced(replace(layout, spares=()), "d0n0")


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
    ({"trainer": trainer(3, 6, 1, 4)}, (64,), 16, "tensor groups of 3 ranks do not fit onto nodes with room for 4 "),
    ({"trainer": Need(8, 1, {"expert": ((0, 1, 2),)})}, (64,), 16, "blocks of 1, 3"),
    ({"generator": Need(1, 9)}, (64,), 16, None),
    ({"generator": Need(1, 10)}, (64,), 16, "takes 3 nodes of 4, and 10 GPUs cannot be divided evenly among 3"),
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
    assert (len(layout.idle), len(layout.spares)) == (4 + 2, 2)
    assert len(used(layout, "trainer")) == 4


def test_without_a_trainer_all_nodes_are_the_generators() -> None:
    layout = lay_out({"generator": Need(0, 8)}, cluster_of(16, 3))
    assert len(layout.places["generator"]) == 9 and "trainer" not in layout.places
    assert layout.spares == ("d1n2",) and layout.idle == ()


def test_one_node_is_shared_out() -> None:
    layout = lay_out({"trainer": trainer(2, 1, 1, 2), "generator": Need(0, 2)}, cluster_of(1, gpus=8))
    taken = {role: [gpu.index for gpus in workers for gpu in gpus] for role, workers in layout.places.items()}
    assert taken == {"trainer": [0, 1, 2, 3], "generator": [4, 5, 6, 7]}
    with pytest.raises(PlanError, match="2 engines of 4 GPUs take 8 GPUs, and 4 of 8 are for them"):
        lay_out({"trainer": Need(4, 1), "generator": Need(2, 4)}, cluster_of(1, gpus=8))
    with pytest.raises(PlanError, match="takes 16 GPUs, and the largest node has 8"):
        lay_out({"trainer": Need(4, 1), "generator": Need(1, 16)}, cluster_of(1, gpus=8))
    with pytest.raises(PlanError, match="one node without GPUs"):
        lay_out({"trainer": Need(), "generator": Need()}, cluster_of(1, gpus=0))


def test_nodes_without_gpus_share_workers_evenly() -> None:
    layout = lay_out({"trainer": Need(6), "generator": Need(0, 8)}, cluster_of(4, 4, gpus=0), policy_nodes=2)
    assert [nodes for nodes, in layout.nodes("trainer")] == ["d0n0"] * 3 + ["d0n1"] * 3
    assert len(layout.places["generator"]) == 6 and layout.spares == ()
    assert lay_out({"trainer": Need(), "generator": Need()}, cluster_of(4, gpus=0)).nodes("trainer") == (("d0n0",),)
