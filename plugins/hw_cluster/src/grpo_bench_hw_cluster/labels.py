"""The nodes of a Ray cluster and their network domains, as the labels of its nodes name them.

Ray is asked in a process of its own, so that the engine's stays free of it; :mod:`.ray_nodes` is what runs there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from grpo_bench.contract import PlanError

from .asking import answer

_OF = "hardware.topology = \"ray\""
_ASK_S = 60.0


def cluster_domains(environ: Mapping[str, str], gpus: int) -> dict[str, tuple[str, ...]]:
    """Nodes by domain, both by name; those with fewer than ``gpus`` GPUs, such as a head without any, left out. A node
    without a label is called by its hostname; where none has a domain each is one of its own. PlanError where Ray
    cannot be asked or labels only some."""
    printed = answer([sys.executable, "-m", "grpo_bench_hw_cluster.ray_nodes"], _OF, _ASK_S, environ,
                     hint=f"see that a Ray cluster answers at RAY_ADDRESS = {environ['RAY_ADDRESS']}")
    nodes = [node for node in json.loads(printed.splitlines()[-1]) if node["gpus"] >= gpus]
    if not nodes:
        raise PlanError(f"{_OF}: the Ray cluster at {environ['RAY_ADDRESS']} has no node with {gpus} GPUs")
    unlabelled = [node["name"] for node in nodes if not node["domain"]]
    if unlabelled and len(unlabelled) < len(nodes):
        raise PlanError(f"{_OF}: {len(unlabelled)} of {len(nodes)} nodes have no label grpo-bench-domain, "
                        f"{unlabelled[0]} the first", hint="label all of them, or none")
    found: dict[str, list[str]] = {}
    for node in sorted(nodes, key=lambda node: (node["domain"], node["name"])):
        found.setdefault(node["domain"] or node["name"], []).append(node["name"])
    return {name: tuple(members) for name, members in found.items()}
