"""The nodes of a Slurm allocation and their network domains.

Slurm knows domains where its administrators describe the network: as blocks (topology/block), each a domain, or as a
tree of switches (topology/tree), where nodes of one leaf switch are a domain. ``scontrol show topology`` prints either.
Where it prints nothing, each node is asked for its address in the network, SLURM_TOPOLOGY_ADDR of a task there:
``rack0.node1``, from the outermost to the node itself. An address that is the node alone says that Slurm knows no
network.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from grpo_bench.contract import PlanError

from .asking import answer

_OF = "hardware.topology = \"slurm\""
_ASK_S, _STEP_S = 30.0, 120.0
"""For a question to Slurm's controller, and for a task on every node."""
_FIELD = re.compile(r"(\w+)=(\S*)")
_TASK = 'echo "$SLURMD_NODENAME $SLURM_TOPOLOGY_ADDR"'


def allocation_domains(environ: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Nodes by domain, in the order of the allocation; PlanError where Slurm does not say it."""
    nodes = _hostnames(environ["SLURM_JOB_NODELIST"], environ)
    domain_of = _described(environ) or _addressed(len(nodes), environ)
    if unknown := [node for node in nodes if node not in domain_of]:
        raise PlanError(f"{_OF}: Slurm says of {len(unknown)} of {len(nodes)} nodes no block or switch, {unknown[0]} "
                        "the first", hint="name a topology file in hardware.topology")
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(domain_of[node], []).append(node)
    return {name: tuple(members) for name, members in found.items()}


def _hostnames(listed: str, environ: Mapping[str, str]) -> list[str]:
    names = answer(["scontrol", "show", "hostnames", listed], _OF, _ASK_S, environ).split()
    if not names:
        raise PlanError(f"{_OF}: scontrol names no node of {listed!r:.80}")
    return names


def _described(environ: Mapping[str, str]) -> dict[str, str]:
    """The domain of each node of the system; nothing where Slurm has no description of its network."""
    printed = answer(["scontrol", "show", "topology"], _OF, _ASK_S, environ)
    return {node: name for name, listed in _listed(printed) for node in _hostnames(listed, environ)}


def _listed(printed: str) -> Iterator[tuple[str, str]]:
    """Name and list of nodes of each block or leaf switch."""
    for line in printed.splitlines():
        fields = dict(_FIELD.findall(line))
        name = fields.get("BlockName") or (fields.get("SwitchName") if fields.get("Level") == "0" else None)
        if name and fields.get("Nodes"):
            yield name, fields["Nodes"]


def _addressed(nodes: int, environ: Mapping[str, str]) -> dict[str, str]:
    """By a task on each node of the allocation."""
    command = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "sh", "-c", _TASK]
    found = {}
    for line in answer(command, _OF, _STEP_S, environ).splitlines():
        node, _, address = line.strip().partition(" ")
        around = address.removesuffix(node).rstrip(".")
        if around:
            found[node] = around.rpartition(".")[2]
    return found
