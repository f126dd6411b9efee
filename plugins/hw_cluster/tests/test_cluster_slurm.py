"""Slurm as its commands answer: blocks, trees of switches, addresses of nodes, and everything that goes wrong."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import pytest
from grpo_bench_hw_cluster import ClusterConfig, ClusterHardware, slurm

from grpo_bench.contract import Missing, PlanError

BLOCKS = """\
BlockName=rack0 BlockIndex=0 Nodes=n[0-17] BlockSize=18
BlockName=rack1 BlockIndex=1 Nodes=n[18-35] BlockSize=18
AggregatedBlock=rack0,rack1 BlockIndex=2 Nodes=n[0-35] BlockSize=36
"""
TREE = """\
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[0-1]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=leaf[0-1]
"""
SCONTROL = """\
#!{python}
import re, sys
print({error!r}, end="", file=sys.stderr)
if sys.argv[1:3] == ["show", "hostnames"]:
    found = re.fullmatch(r"(.*)\\[(\\d+)-(\\d+)\\]", sys.argv[3])
    names = [found[1] + str(n) for n in range(int(found[2]), int(found[3]) + 1)] if found else sys.argv[3].split(",")
    print("\\n".join(names))
else:
    print({topology!r}, end="")
    sys.exit({code})
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH on which only fake commands lie, and the shell."""
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def fake(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def scontrol(folder: Path, topology: str = "", code: int = 0, error: str = "") -> None:
    fake(folder, "scontrol", SCONTROL.format(python=sys.executable, topology=topology, code=code, error=error))


def srun(folder: Path, addresses: dict[str, str]) -> None:
    tasks = "\n".join(f"SLURMD_NODENAME={node} SLURM_TOPOLOGY_ADDR={address} eval \"$task\""
                      for node, address in addresses.items())
    fake(folder, "srun", f'#!/bin/sh\nfor task; do :; done\n[ "$1 $2" = "--overlap --nodes=4" ] || exit 3\n{tasks}\n')


def domains(nodelist: str, nodes: int) -> dict[str, list[str]]:
    config = ClusterConfig(nodes=nodes, topology="slurm", gpus_per_node=0)
    return ClusterHardware(config, {}, {**os.environ, "SLURM_JOB_NODELIST": nodelist}).describe()["domains"]


def test_blocks_are_domains(commands: Path) -> None:
    scontrol(commands, BLOCKS)
    found = domains("n[12-27]", 16)
    assert {name: len(nodes) for name, nodes in found.items()} == {"rack0": 6, "rack1": 10}
    assert found["rack0"][0] == "n12"


def test_leaf_switches_are_domains(commands: Path) -> None:
    scontrol(commands, TREE)
    assert domains("n[0-3]", 4) == {"leaf0": ["n0", "n1"], "leaf1": ["n2", "n3"]}
    config = ClusterConfig(nodes=4, topology="slurm", nodes_per_domain=1, gpus_per_node=0)
    apart = ClusterHardware(config, {}, {**os.environ, "SLURM_JOB_NODELIST": "n[0-3]"})
    assert len(apart.describe()["domains"]) == 4


@pytest.mark.parametrize("around", ["rack{}", "spine.rack{}", "hall.[s0,s1].rack{}"])
def test_nodes_say_their_address_where_nothing_describes_the_network(commands: Path, around: str) -> None:
    scontrol(commands)
    srun(commands, {f"n{number}": f"{around.format(number // 2)}.n{number}" for number in range(4)})
    assert domains("n[0-3]", 4) == {"rack0": ["n0", "n1"], "rack1": ["n2", "n3"]}


def test_a_network_that_slurm_does_not_know_is_said(commands: Path) -> None:
    scontrol(commands)
    srun(commands, {f"n{number}": f"n{number}" for number in range(4)})
    with pytest.raises(PlanError, match="Slurm says of 4 of 4 nodes no block or switch, n0 the first") as caught:
        domains("n[0-3]", 4)
    assert caught.value.hint == "name a topology file in hardware.topology"


def test_outside_an_allocation_a_plan_assumes_racks(commands: Path) -> None:
    machine = ClusterHardware(ClusterConfig(nodes=4, topology="slurm"), {}, {"PATH": str(commands)})
    with pytest.raises(Missing, match="not known here: this is no Slurm allocation, SLURM_JOB_NODELIST is not set"):
        machine.describe()


@pytest.mark.parametrize(("code", "error", "words"), [
    (1, "slurm_load_topo: Unable to contact slurm controller\n", "scontrol show topology failed with exit code 1: "
                                                                 "slurm_load_topo: Unable to contact"),
    (1, "", "failed with exit code 1: it said nothing")])
def test_a_question_that_fails_says_which(commands: Path, code: int, error: str, words: str) -> None:
    scontrol(commands, code=code, error=error)
    with pytest.raises(PlanError, match=re.escape(words)):
        domains("n[0-3]", 4)


def test_an_allocation_of_another_size_is_refused(commands: Path) -> None:
    scontrol(commands, TREE)
    with pytest.raises(PlanError, match=r"Slurm's allocation names 2 nodes, and hardware\.nodes is 4"):
        domains("n[0-1]", 4)


def test_without_slurms_commands_it_is_said_what_to_do(commands: Path) -> None:
    with pytest.raises(PlanError, match="scontrol cannot be started: No such file") as caught:
        domains("n[0-3]", 4)
    assert "on PATH" in caught.value.hint


def test_a_controller_that_hangs_is_left_with_all_that_it_started(commands: Path, monkeypatch: pytest.MonkeyPatch,
                                                                  ) -> None:
    monkeypatch.setattr(slurm, "_ASK_S", 0.5)
    mark = commands / "child"
    fake(commands, "scontrol", f"#!/bin/sh\n/bin/sleep 600 &\necho $! > {mark}\nwait\n")
    with pytest.raises(PlanError, match=r"scontrol show hostnames gave no answer within 0\.5 s"):
        domains("n[0-3]", 4)
    child = Path(f"/proc/{mark.read_text().strip()}/stat")
    for _ in range(1000):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        threading.Event().wait(0.01)
    raise AssertionError("the child of the question lives on")


@pytest.mark.real("slurm")
def test_a_real_allocation_says_its_racks() -> None:
    """By the description of the network, and by the addresses of its nodes."""
    from tests.slurm.rig import slurm as rig_of_slurm

    asks = ("import json, os; from grpo_bench_hw_cluster import slurm; "
            "print(json.dumps([slurm.allocation_domains(os.environ), slurm._addressed(4, os.environ)]))")
    with rig_of_slurm() as rig:
        script, printed = rig.folder / "ask.sh", rig.folder / "asked.json"
        script.write_text(f"#!/bin/sh\n{sys.executable} -c '{asks}' > {printed}\n")
        rig.until_job(rig.submit(script, "--nodes=4"), "COMPLETED")
        described, addressed = json.loads(printed.read_text())
        racks = {name: list(nodes) for name, nodes in rig.layout.domains.items()}
    assert described == racks
    assert addressed == {node: name for name, nodes in racks.items() for node in nodes}
