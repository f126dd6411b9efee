"""Racks of GB300 nodes, and what comes of the benchmark's needs on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpo_bench_hw_cluster import TRAINER, ClusterHardware, lay_out
from grpo_bench_hw_cluster.cluster import assumed
from grpo_bench_hw_gb300 import Gb300Config
from grpo_bench_hw_gb300.hardware import create
from pydantic import ValidationError

from grpo_bench.contract import Missing, Need, PluginContext

BENCHMARK = {
    "trainer": Need(64, 1, {
        "tensor": tuple(tuple(range(start, start + 4)) for start in range(0, 64, 4)),
        "data": tuple(tuple(range(start + rank, start + 32, 4)) for start in (0, 32) for rank in range(4)),
        "expert": (tuple(range(32)), tuple(range(32, 64))),
        "pipeline": tuple((rank, rank + 32) for rank in range(32))}),
    "generator": Need(24, 8),
    "rollout": Need(16),
}


def made(**config: Any) -> ClusterHardware:
    nothing: Any = None
    return create(PluginContext(config=Gb300Config(**config), fabric=nothing, placement=nothing, run_folder=Path(),
                                policy=nothing, seed=0, deterministic=False, clock=nothing, logger=nothing))


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPO_BENCH_TOPOLOGY", raising=False)


def test_64_nodes_are_16_for_the_policy_and_48_for_24_engines() -> None:
    placed = made(policy_nodes=16).place(BENCHMARK)
    policy, engines = placed["trainer"], placed["generator"]
    assert (len(set(policy.nodes)), len(set(engines.nodes)), engines.workers) == (16, 48, 24)
    assert {node.partition("-")[0] for node in policy.nodes} == {"rack0"}
    assert policy.nodes[:8] == ("rack0-node00",) * 4 + ("rack0-node01",) * 4
    assert engines.nodes[:2] == ("rack1-node00", "rack1-node01")
    assert (policy.gpus, engines.gpus, placed["rollout"].gpus) == (1, 8, 0)
    assert len(set(placed["rollout"].nodes)) == 16 and not policy.spares


def test_spare_nodes_stand_in_their_own_racks() -> None:
    placed = made(nodes=72, policy_nodes=16, segment=18, spare=8).place(BENCHMARK)
    assert set(placed["trainer"].spares) == set(placed["trainer"].nodes)
    for role in ("trainer", "generator"):
        for lost, found in placed[role].spares.items():
            assert found and {node.partition("-")[0] for node in found} == {lost.partition("-")[0]}


def test_a_whole_rack_has_18_nodes() -> None:
    def sizes(**config: Any) -> tuple[int, ...]:
        return assumed(Gb300Config(**config), "here").sizes

    assert sizes() == (16, 16, 16, 16) and sizes(segment=18) == (18, 18, 18, 10) == sizes(segment=0)
    assert sizes(nodes=3, segment=2) == (3,) and sizes(nodes_per_domain=8) == (8,) * 8


def test_experts_of_32_ranks_are_inside_a_segment() -> None:
    layout = lay_out(BENCHMARK, assumed(Gb300Config(), "here"), 16)
    for group in BENCHMARK["trainer"].groups["expert"]:
        nodes = {layout.places[TRAINER][rank][0].node for rank in group}
        assert len(nodes) == 8


def test_collectives_may_go_over_nvlink_between_nodes() -> None:
    env = made().form().env
    assert env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1", "NCCL_CUMEM_ENABLE": "1",
                   "NCCL_MNNVL_ENABLE": "1"}
    assert env.items() <= made().place(BENCHMARK)["generator"].env.items()
    assert (made().form().nodes, made().form().gpus, made().form().segment) == (64, 4, 8)


def test_another_host_lacks_them_and_knows_the_cluster_all_the_same() -> None:
    with pytest.raises(Missing, match="its nodes are not known here") as caught:
        made().describe()
    assert caught.value.facts["gpu_memory_bytes"] == 288_000_000_000 and len(caught.value.facts["domains"]) == 4


def test_numbers_that_are_left_open_fill_the_cluster() -> None:
    placed = made(nodes=16).place({"trainer": Need(), "generator": Need(), "rollout": Need()})
    assert (placed["trainer"].workers, placed["generator"].workers, placed["rollout"].workers) == (16, 48, 1)


@pytest.mark.parametrize(("settings", "words"), [
    ({"segment": 19}, "segment = 19 nodes do not fit into a domain of nodes_per_domain = 18"),
    ({"nodes": 16, "policy_nodes": 16}, "policy_nodes = 16 leaves none of nodes = 16 to the generator"),
    ({"gpus_per_node": 0}, "gpus_per_node"), ({"racks": 4}, "racks")])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Gb300Config(**settings)
