"""The cluster as settings and topology files describe it, this host beside it, and the placements that come of both."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from grpo_bench_hw_cluster import ClusterConfig, ClusterHardware
from pydantic import ValidationError

from grpo_bench.contract import LaunchForm, Missing, Need, PlanError

NEEDS = {"trainer": Need(8, 1), "generator": Need(2, 8), "rollout": Need(3)}


def host(root: Path, gpus: int, model: str = "NVIDIA H200") -> Path:
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


def hardware(environ: dict[str, str] | None = None, root: Path = Path("/nowhere"), **config: Any) -> ClusterHardware:
    return ClusterHardware(ClusterConfig(**config), {}, environ or {}, root)


def test_nodes_that_nothing_names_can_be_planned_with_only() -> None:
    machine = hardware(nodes=20, gpus_per_node=4, nodes_per_domain=18, segment=8, gpu_memory_gb=288.0)
    with pytest.raises(Missing, match="its nodes are not known here: nothing names them") as it:
        machine.describe()
    facts = it.value.facts
    assert (facts["nodes"], facts["gpus"], facts["gpu_memory_bytes"]) == (20, 4, 288_000_000_000)
    assert list(map(len, facts["domains"].values())) == [16, 4]
    assert facts["domains_from"] == "assumed: segments of 8 nodes inside domains of 18"


@pytest.mark.parametrize(("settings", "sizes"), [
    ({"nodes": 20, "nodes_per_domain": 18, "segment": 8}, [16, 4]), ({"nodes": 3, "nodes_per_domain": 18}, [3]),
    ({"nodes": 64, "nodes_per_domain": 18, "segment": 18}, [18, 18, 18, 10]), ({"nodes": 3}, [1, 1, 1]),
    ({"nodes": 64, "nodes_per_domain": 18}, [18, 18, 18, 10])])
def test_whole_segments_are_filled_into_domains(settings: dict[str, Any], sizes: list[int]) -> None:
    with pytest.raises(Missing) as caught:
        hardware(**settings).describe()
    domains = caught.value.facts["domains"]
    assert list(map(len, domains.values())) == sizes
    assert len({node for nodes in domains.values() for node in nodes}) == sum(sizes)


def test_a_topology_file_says_which_nodes_there_are(tmp_path: Path) -> None:
    domains = {"a": ["n0", "n1", "n2", "n3"], "b": ["n4", "n5", "n6"]}
    machine = hardware(nodes=7, gpus_per_node=4, policy_nodes=2, topology=topology(tmp_path, domains))
    assert machine.describe()["domains"] == domains
    placed = machine.place(NEEDS)
    assert placed["trainer"].nodes == ("n0",) * 4 + ("n1",) * 4
    assert placed["generator"].nodes == ("n2", "n3", "n4", "n5")
    assert placed["rollout"].nodes == ("n0", "n2", "n4")
    assert [placed[role].gpus for role in NEEDS] == [1, 8, 0]
    assert placed["trainer"].spares == {"n0": ("n6",), "n1": ("n6",)}
    assert placed["generator"].spares == {"n4": ("n6",), "n5": ("n6",)}
    assert placed["rollout"].spares == {"n0": ("n6",), "n4": ("n6",)}


def test_the_environment_can_name_the_file(tmp_path: Path) -> None:
    file = topology(tmp_path, {"a": ["n0", "n1"], "b": ["n2"]})
    machine = hardware({"GRPO_BENCH_TOPOLOGY": file}, nodes=3, nodes_per_domain=4)
    assert machine.describe()["domains_from"] == file and list(machine.describe()["domains"]) == ["a", "b"]
    apart = hardware({"GRPO_BENCH_TOPOLOGY": file}, nodes=3, nodes_per_domain=1)
    assert apart.describe()["domains"] == {"n0": ["n0"], "n1": ["n1"], "n2": ["n2"]}
    own = hardware({"GRPO_BENCH_TOPOLOGY": "/nowhere"}, nodes=3, topology=file)
    assert own.describe()["nodes"] == 3
    with pytest.raises(PlanError, match="GRPO_BENCH_TOPOLOGY: /nowhere cannot be read"):
        hardware({"GRPO_BENCH_TOPOLOGY": "/nowhere"}, nodes=3)


@pytest.mark.parametrize(("content", "words"), [
    ({"a": ["n1"]}, "names 1 nodes, and hardware.nodes is 2"), ({"a": ["n1", "n1"]}, "names n1 more than once"),
    ({}, "does not name nodes by domain"), ([], "does not name nodes by domain"), ({"a": []}, "does not name nodes"),
    ({"a": ["n1", 2]}, "does not name nodes"), (None, "does not name nodes by domain"),
    ({"a": ["n1", "n\n2"]}, r"has 'n\\n2', which cannot be the name"), ({"<a>": ["n1"]}, "has '<a>', which cannot be"),
    ({"a": ["n" * 2**20]}, "has more than 1,048,576 bytes")])
def test_a_topology_file_that_cannot_be_is_named(tmp_path: Path, content: Any, words: str) -> None:
    file = topology(tmp_path, content)
    with pytest.raises(PlanError, match=f"hardware.topology: {file} {words}"):
        hardware(nodes=2, topology=file)


def test_a_topology_file_that_names_a_domain_twice_or_is_none_is_named(tmp_path: Path) -> None:
    twice, pipe = tmp_path / "twice.json", tmp_path / "pipe"
    twice.write_text('{"a": ["n1"], "a": ["n2", "n3"]}')
    os.mkfifo(pipe)
    with pytest.raises(PlanError, match="'a' is in it more than once"):
        hardware(nodes=2, topology=str(twice))
    with pytest.raises(PlanError, match="pipe is no file"):
        hardware(nodes=2, topology=str(pipe))


def test_a_topology_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"hardware\.topology: .*nowhere cannot be read"):
        hardware(topology=str(tmp_path / "nowhere"))


def test_one_node_is_this_host(tmp_path: Path) -> None:
    machine = hardware(root=host(tmp_path, 8), gpu="H200")
    assert machine.describe()["domains"] == {platform.node(): [platform.node()]}
    placed = machine.place({"trainer": Need(4, 1), "generator": Need(1, 4)})
    assert (placed["trainer"].gpus, placed["generator"].gpus) == (1, 4)
    assert set(placed["trainer"].nodes) == set(placed["generator"].nodes) == {platform.node()}


@pytest.mark.parametrize(("gpus", "model", "words"), [
    (0, "", "has no GPUs of type H200 and should have 8"), (1, "NVIDIA H200", "has 1 GPU of type H200 and should"),
    (8, "NVIDIA H100 80GB HBM3", "has no GPUs of type H200")])
def test_a_host_that_is_called_a_node_has_its_gpus(tmp_path: Path, gpus: int, model: str, words: str) -> None:
    file = topology(tmp_path, {"a": [platform.node().partition(".")[0], "other"]})
    machine = hardware(root=host(tmp_path, gpus, model), gpu="H200", nodes=2, topology=file)
    with pytest.raises(Missing, match=words) as caught:
        machine.describe()
    assert caught.value.facts["nodes"] == 2
    elsewhere = topology(tmp_path, {"a": ["one", "other"]})
    assert hardware(root=host(tmp_path / "r", 0), gpu="H200", nodes=2, topology=elsewhere).describe()["gpu"] == "H200"


def test_workers_start_with_what_keeps_collectives_in_order() -> None:
    placed = hardware(nodes=8, gpus_per_node=4, nodes_per_domain=8, threads=3).place(NEEDS)
    env = placed["trainer"].env
    assert (env["CUDA_DEVICE_MAX_CONNECTIONS"], env["NCCL_LAUNCH_ORDER_IMPLICIT"]) == ("1", "1")
    assert env["OMP_NUM_THREADS"] == "3" and placed["generator"].threads == 3


def test_a_scheduler_is_asked_for_all_of_it() -> None:
    form = hardware(nodes=6, nodes_per_domain=2, segment=2, spare=1).form()
    assert (form.nodes, form.gpus, form.segment) == (6, 8, 2)
    assert form.env == {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
    assert hardware(nodes=4, gpus_per_node=0).form() == LaunchForm(nodes=4)


def test_equal_runs_get_the_kernels_that_allow_them(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("vendor_id\t: GenuineIntel\n")
    for deterministic, expected in ((True, {"MKL_CBWR": "AUTO,STRICT"}), (False, {})):
        config = ClusterConfig(nodes=4, gpus_per_node=0)
        machine = ClusterHardware(config, {}, {}, tmp_path, deterministic=deterministic)
        assert machine.form().env == expected
        assert expected.items() <= machine.place({"generator": Need()})["generator"].env.items()


def test_nodes_without_gpus_hold_a_mock_run(tmp_path: Path) -> None:
    """As a run on four hosts without GPUs asks for it."""
    file = topology(tmp_path, {"a": ["n0", "n1"], "b": ["n2", "n3"]})
    needs = {"trainer": Need(), "generator": Need(), "rollout": Need(8)}
    placed = hardware(nodes=4, gpus_per_node=0, topology=file).place(needs)
    assert (placed["trainer"].nodes, placed["generator"].nodes) == (("n0",), ("n1", "n2", "n3"))
    assert placed["rollout"].nodes == ("n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3")
    assert {place.gpus for place in placed.values()} == {0}
    spared = hardware(nodes=4, gpus_per_node=0, topology=file, spare=1).place(needs)
    assert spared["generator"].nodes == ("n1", "n2") and spared["generator"].spares == {"n1": ("n3",), "n2": ("n3",)}
    assert "n3" not in spared["rollout"].nodes


@pytest.mark.parametrize(("settings", "words"), [
    ({"segment": 2}, "segment = 2 nodes do not fit into a domain of nodes_per_domain = 1"),
    ({"nodes": 16, "policy_nodes": 16}, "policy_nodes = 16 leaves none of nodes = 16 to the generator"),
    ({"nodes": 16, "generation_nodes": 14, "spare": 2},
     "generation_nodes = 14 and spare = 2 leave none of nodes = 16 to the trainer"),
    ({"nodes": 4, "spare": 3}, "spare = 3 leaves 1 of nodes = 4 to the trainer and the generator"),
    ({"nodes": 4, "policy_nodes": 3, "generation_nodes": 2}, "policy_nodes = 3 and generation_nodes = 2 are more than"),
    ({"nodes": 1, "policy_nodes": 1}, "leaves none of nodes = 1"),
    ({"nodes": 4, "topology": "slurm", "nodes_per_domain": 2}, "nodes_per_domain = 2 would not be used"),
    ({"gpus_per_node": 0, "gpu": "H200"}, "gpu = 'H200' says nothing"),
    ({"gpus_per_node": 0, "gpu_memory_gb": 80.0}, "gpu_memory_gb says nothing"),
    ({"nodes": 0}, "nodes"), ({"racks": 4}, "racks"), ({"topology": ""}, "topology")])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ClusterConfig(**settings)


@pytest.mark.parametrize("settings", [
    {"nodes": 1}, {"nodes": 4, "policy_nodes": 1, "generation_nodes": 2, "spare": 1}, {"nodes": 2},
    {"nodes": 4, "policy_nodes": 1, "generation_nodes": 1}, {"nodes": 4, "topology": "ray", "nodes_per_domain": 1}])
def test_settings_that_make_sense_are_taken(settings: dict[str, Any]) -> None:
    assert ClusterConfig(**settings).nodes == settings["nodes"]
