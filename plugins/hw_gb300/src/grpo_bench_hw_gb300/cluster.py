"""The cluster: nodes in network domains.

Inside a domain every GPU reaches every other over NVLink; between domains the network is slower. Which nodes a run has
is known once the scheduler gave them, and stands in a topology file then. Before that the cluster is the one that the
settings describe: whole segments, filled into one domain after the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import PlanError

from ._plugin import Gb300Config

MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Domains in a fixed order; every node has ``gpus`` GPUs."""

    domains: tuple[Domain, ...]
    gpus: int

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for domain in self.domains for node in domain.nodes)

    def domain_of(self) -> dict[str, str]:
        """The domain's name by node."""
        return {node: domain.name for domain in self.domains for node in domain.nodes}


def described(config: Gb300Config) -> Cluster:
    """The cluster that the settings describe, from a topology file where they name one."""
    if config.topology is not None:
        return read_topology(Path(config.topology).expanduser(), config)
    return Cluster(tuple(_domains(config)), config.gpus_per_node)


def _domains(config: Gb300Config) -> Iterator[Domain]:
    whole = config.nodes_per_domain // config.segment * config.segment
    starts = range(0, config.nodes, whole)
    for number, start in enumerate(starts):
        name = f"rack{number:0{len(str(len(starts) - 1))}}"
        yield Domain(name, tuple(f"{name}-node{place:02}" for place in range(min(whole, config.nodes - start))))


def read_topology(file: Path, config: Gb300Config) -> Cluster:
    """The cluster in ``file``; PlanError where it holds none, or another number of nodes than the settings say."""
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"hardware.topology: {file} cannot be read: {error}", hint=_FORM) from None
    if not (isinstance(found, dict) and found and all(map(_is_names, found.values()))):
        raise PlanError(f"hardware.topology: {file} does not name nodes by domain", hint=_FORM)
    cluster = Cluster(tuple(Domain(name, tuple(nodes)) for name, nodes in found.items()), config.gpus_per_node)
    if twice := [node for node, count in Counter(cluster.nodes).items() if count > 1]:
        raise PlanError(f"hardware.topology: {file} names {', '.join(twice[:3])} more than once")
    if len(cluster.nodes) != config.nodes:
        raise PlanError(f"hardware.topology: {file} names {len(cluster.nodes)} nodes, and hardware.nodes is "
                        f"{config.nodes}", hint="change the one that is wrong")
    return cluster


def _is_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_FORM = 'it should be a JSON file such as {"rack0": ["node0", "node1"], "rack1": ["node2"]}'
