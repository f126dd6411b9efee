"""Ray's nodes by their labels: what is made of Ray's answer, and one real cluster that gives it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_hw_cluster import ClusterConfig, ClusterHardware

from grpo_bench.contract import Missing, PlanError


def node(name: str, domain: str = "", gpus: int = 4) -> dict[str, Any]:
    return {"name": name, "domain": domain, "gpus": gpus}


@pytest.fixture
def ray_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the interpreter that Ray is asked with print this, and end with a code."""
    def says(text: str, code: int = 0) -> None:
        program = tmp_path / "python"
        stream = ">&2" if code else ""
        program.write_text(f"#!/bin/sh\ncat <<'END' {stream}\n{text}\nEND\nexit {code}\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
    return says


def domains(nodes: int, gpus: int = 4) -> dict[str, list[str]]:
    config = ClusterConfig(nodes=nodes, topology="ray", gpus_per_node=gpus)
    return ClusterHardware(config, {}, {**os.environ, "RAY_ADDRESS": "head:6379"}).describe()["domains"]


def test_labels_name_nodes_and_domains(ray_says: Any) -> None:
    nodes = [node("n2", "b"), node("n1", "a"), node("head", "", 0), node("n0", "a")]
    ray_says(f"a line of Ray's own\n{json.dumps(nodes)}")
    assert domains(3) == {"a": ["n0", "n1"], "b": ["n2"]}


def test_without_domains_each_node_is_one(ray_says: Any) -> None:
    ray_says(json.dumps([node("n1"), node("n0")]))
    assert domains(2, gpus=0) == {"n0": ["n0"], "n1": ["n1"]}


@pytest.mark.parametrize(("nodes", "words"), [
    ([node("n0", "a"), node("n1")], "1 of 2 nodes have no label grpo-bench-domain, n1 the first"),
    ([node("n0", "a")], "the Ray cluster at head:6379 names 1 nodes, and hardware.nodes is 2"),
    ([node("n0", "a", 2)], "the Ray cluster at head:6379 has no node with 4 GPUs"),
    ([node("n0", "a"), node("n0", "b")], "names n0 more than once")])
def test_a_cluster_that_is_another_is_refused(ray_says: Any, nodes: list[dict[str, Any]], words: str) -> None:
    ray_says(json.dumps(nodes))
    with pytest.raises(PlanError, match=re.escape(words)):
        domains(2)


def test_a_cluster_that_does_not_answer_is_named(ray_says: Any) -> None:
    ray_says("Traceback\nConnectionError: Could not find any running Ray instance", 1)
    with pytest.raises(PlanError, match="failed with exit code 1: ConnectionError: Could not find any") as caught:
        domains(2)
    assert caught.value.hint == "see that a Ray cluster answers at RAY_ADDRESS = head:6379"


def test_without_an_address_a_plan_assumes_nodes() -> None:
    with pytest.raises(Missing, match="not known here: RAY_ADDRESS is not set"):
        ClusterHardware(ClusterConfig(nodes=4, topology="ray"), {}, {}).describe()


@pytest.fixture
def ray_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a cluster of one labelled node."""
    for name, value in {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0",
                        "RAY_USAGE_STATS_ENABLED": "0"}.items():
        monkeypatch.setenv(name, value)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 1, "num_gpus": 4, "object_store_memory": 80_000_000, "include_dashboard": False,
        "labels": {"grpo-bench-node": "n0", "grpo-bench-domain": "rack0"}})
    yield str(cluster.address)
    cluster.shutdown()


@pytest.mark.real("ray")
@pytest.mark.filterwarnings("default")
def test_ray_is_asked_in_a_process_of_its_own(ray_node: str) -> None:
    config = ClusterConfig(nodes=1, topology="ray", gpus_per_node=4)
    facts = ClusterHardware(config, {}, {**os.environ, "RAY_ADDRESS": ray_node}).describe()
    assert facts["domains"] == {"rack0": ["n0"]} and facts["domains_from"] == f"the Ray cluster at {ray_node}"
