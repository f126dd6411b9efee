"""The cluster: nodes in network domains.

Inside a domain every GPU reaches every other over NVLink; between domains the network is slower. Which nodes a run has
is known once the scheduler gave them. Before that the cluster is the one that the settings describe: whole segments,
filled into one domain after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._plugin import ClusterConfig


@dataclass(frozen=True, slots=True)
class Domain:
    name: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Domains in a fixed order; every node has ``gpus`` GPUs, 0 where it has none."""

    domains: tuple[Domain, ...]
    gpus: int

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for domain in self.domains for node in domain.nodes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Nodes of each domain."""
        return tuple(len(domain.nodes) for domain in self.domains)

    def domain_of(self) -> dict[str, str]:
        """The domain's name by node."""
        return {node: domain.name for domain in self.domains for node in domain.nodes}


def assumed(config: ClusterConfig, host: str) -> Cluster:
    """The cluster that the settings describe; one node alone is ``host``."""
    if config.nodes == 1:
        return Cluster((Domain(host, (host,)),), config.gpus_per_node)
    return Cluster(tuple(_domains(config)), config.gpus_per_node)


def apart(cluster: Cluster) -> Cluster:
    """The same nodes, each a domain of its own."""
    return Cluster(tuple(Domain(node, (node,)) for node in cluster.nodes), cluster.gpus)


def _domains(config: ClusterConfig) -> Iterator[Domain]:
    segment = config.segment or 1
    whole = config.domain_nodes // segment * segment
    starts = range(0, config.nodes, whole)
    width = len(str(len(starts) - 1))
    for number, start in enumerate(starts):
        if whole == 1:
            yield Domain(name := f"node{number:0{width}}", (name,))
            continue
        name = f"rack{number:0{width}}"
        yield Domain(name, tuple(f"{name}-node{place:02}" for place in range(min(whole, config.nodes - start))))
