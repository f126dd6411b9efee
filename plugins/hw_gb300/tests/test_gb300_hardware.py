"""The cluster as settings and topology files describe it, this host beside it, and the placements that come of both."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_hw_gb300 import Gb300Config
from grpo_bench_hw_gb300.hardware import RackHardware
from pydantic import ValidationError

from grpo_bench.contract import Missing, Need, PlanError

NEEDS = {"trainer": Need(8, 1), "generator": Need(2, 8), "rollout": Need(3)}


def host(root: Path, gpus: int, model: str = "NVIDIA GB300") -> Path:
    """A root folder as the driver would fill it."""
    for number in range(gpus):
        folder = root / f"proc/driver/nvidia/gpus/000{number}:01:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ: 5\n")
    return root


def topology(folder: Path, domains: Any) -> str:
    file = folder / "topology.json"
    file.write_text(json.dumps(domains))
    return str(file)


def test_a_host_with_its_gpus_is_one_of_the_nodes(tmp_path: Path) -> None:
    facts = RackHardware(Gb300Config(nodes=20), host(tmp_path, 4)).describe()
    assert (facts["nodes"], facts["gpus"], facts["gpu_memory_bytes"]) == (20, 4, 288_000_000_000)
    assert list(map(len, facts["domains"].values())) == [16, 4]
    assert facts["domains_from"] == "assumed: segments of 8 nodes inside domains of 18"


@pytest.mark.parametrize(("gpus", "model", "words"), [
    (0, "", "it has no GPUs of type GB300"), (1, "NVIDIA GB300", "it has 1 GPU of type GB300"),
    (4, "NVIDIA H100 80GB HBM3", "it has no GPUs of type GB300")])
def test_another_host_lacks_them_and_knows_the_cluster_all_the_same(tmp_path: Path, gpus: int, model: str,
                                                                    words: str) -> None:
    hardware = RackHardware(Gb300Config(), host(tmp_path, gpus, model))
    with pytest.raises(Missing, match=words) as caught:
        hardware.describe()
    assert caught.value.facts["nodes"] == 64 and len(caught.value.facts["domains"]) == 4


def test_a_topology_file_says_which_nodes_there_are(tmp_path: Path) -> None:
    here = platform.node()
    config = Gb300Config(nodes=6, policy_nodes=2, topology=topology(tmp_path, {"a": [here, "n1", "n2", "n3"],
                                                                               "b": ["n4", "n5"]}))
    hardware = RackHardware(config, host(tmp_path, 4))
    assert hardware.describe()["domains"] == {"a": [here, "n1", "n2", "n3"], "b": ["n4", "n5"]}
    placed = hardware.place(NEEDS)
    assert placed["trainer"].nodes == (here,) * 4 + ("n1",) * 4
    assert placed["generator"].nodes == ("n2", "n3", "n4", "n5")
    assert placed["rollout"].nodes == (here, "n2", "n4")
    elsewhere = Gb300Config(nodes=2, topology=topology(tmp_path, {"a": ["n1", "n2"]}))
    with pytest.raises(Missing, match=f"does not name {here}"):
        RackHardware(elsewhere, tmp_path).describe()


@pytest.mark.parametrize(("content", "words"), [
    ({"a": ["n1"]}, "names 1 nodes, and hardware.nodes is 2"), ({"a": ["n1", "n1"]}, "names n1 more than once"),
    ({}, "does not name nodes by domain"), ([], "does not name nodes by domain"), ({"a": []}, "does not name nodes"),
    ({"a": ["n1", 2]}, "does not name nodes"), (None, "does not name nodes by domain")])
def test_a_topology_file_that_cannot_be_is_named(tmp_path: Path, content: Any, words: str) -> None:
    file = topology(tmp_path, content)
    with pytest.raises(PlanError, match=f"hardware.topology: {file} {words}"):
        RackHardware(Gb300Config(nodes=2, topology=file))


def test_a_topology_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"hardware\.topology: .*nowhere cannot be read"):
        RackHardware(Gb300Config(topology=str(tmp_path / "nowhere")))


def test_workers_start_with_what_keeps_collectives_in_order(tmp_path: Path) -> None:
    placed = RackHardware(Gb300Config(nodes=8, threads=3), tmp_path).place(NEEDS)
    env = placed["trainer"].env
    assert (env["CUDA_DEVICE_MAX_CONNECTIONS"], env["NCCL_LAUNCH_ORDER_IMPLICIT"]) == ("1", "1")
    assert env["OMP_NUM_THREADS"] == "3" and placed["generator"].threads == 3


def test_numbers_that_are_left_open_fill_the_cluster(tmp_path: Path) -> None:
    placed = RackHardware(Gb300Config(nodes=16), tmp_path).place({"trainer": Need(), "generator": Need(),
                                                                  "rollout": Need()})
    assert (placed["trainer"].workers, placed["generator"].workers, placed["rollout"].workers) == (16, 48, 1)


@pytest.mark.parametrize(("settings", "words"), [
    ({"segment": 19}, "segment = 19 nodes do not fit into a domain of nodes_per_domain = 18"),
    ({"nodes": 16, "policy_nodes": 16}, "policy_nodes = 16 leaves none of nodes = 16 to the generator"),
    ({"nodes": 0}, "nodes"), ({"racks": 4}, "racks")])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Gb300Config(**settings)
