"""Hosts of a cluster, and which of them a worker goes to: facts and choices without Ray.

A node of the cluster is a host. It is called what its label ``grpo-bench-node`` says, else by its hostname; the label
``grpo-bench-domain`` names its network domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_bench.contract import Placement

NODE_LABEL, DOMAIN_LABEL = "grpo-bench-node", "grpo-bench-domain"


@dataclass(frozen=True, slots=True)
class Host:
    """``node`` is Ray's id; ``domain`` is empty where no label says one."""

    name: str
    node: str
    address: str
    gpus: int
    domain: str
    alive: bool

    @property
    def selector(self) -> dict[str, str]:
        """The labels by which Ray finds it, and nothing else."""
        return {"ray.io/node-id": self.node}


def hosts_of(nodes: Iterable[Mapping[str, Any]]) -> dict[str, Host]:
    """Hosts by name, from what ``ray.nodes()`` says; of two nodes of one name a living one."""
    found: dict[str, Host] = {}
    for node in nodes:
        labels = node.get("Labels") or {}
        name = labels.get(NODE_LABEL, node["NodeManagerHostname"])
        host = Host(name, node["NodeID"], node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0)),
                    labels.get(DOMAIN_LABEL, ""), bool(node["Alive"]))
        if name not in found or (host.alive and not found[name].alive):
            found[name] = host
    return found


def places(placement: Placement, here: str) -> list[tuple[str, ...]]:
    """The hosts of each worker; ``here`` where the placement names none."""
    return list(placement.hosts) or [(here,)] * placement.workers


def wanted(placements: Iterable[Placement], here: str) -> Counter[str]:
    """GPUs that these placements take of each of their hosts."""
    found: Counter[str] = Counter()
    for placement in placements:
        for hosts in places(placement, here):
            found.update(dict.fromkeys(hosts, placement.gpus_per_host))
    return found


def successor(lost: str, placement: Placement, known: Mapping[str, Host], taken: Collection[str],
              loads: Mapping[str, int]) -> str | None:
    """The host that takes the place of one that is lost: the first of its spares that lives and is not ``taken``. A
    worker without GPUs goes, where there is none, to the living host of its group that has the fewest workers."""
    spares = placement.spares.get(lost, ())
    free = [spare for spare in spares if lives(spare, known) and spare not in taken]
    if free:
        return free[0]
    others = {host for host in placement.nodes if lives(host, known)} if not placement.gpus else ()
    return min(others, key=lambda host: (loads.get(host, 0), host), default=None)


def lives(name: str, known: Mapping[str, Host]) -> bool:
    return name in known and known[name].alive


def absent(placements: Mapping[str, Placement], known: Mapping[str, Host], here: str) -> list[str]:
    """The hosts of these placements that are not there."""
    return sorted(name for name in wanted(placements.values(), here) if not lives(name, known))


def unfit(placements: Mapping[str, Placement], known: Mapping[str, Host], here: str) -> list[str]:
    """What hosts that are there lack of what is placed on them, one line each."""
    lines = [f"host {name} has {known[name].gpus} GPUs, and {gpus} are placed on it"
             for name, gpus in sorted(wanted(placements.values(), here).items())
             if lives(name, known) and known[name].gpus < gpus]
    for role, placement in placements.items():
        for rank, hosts in enumerate(places(placement, here)):
            domains = {known[host].domain for host in hosts if lives(host, known)} - {""}
            if len(domains) > 1:
                lines.append(f"{role} {rank} sits on {', '.join(hosts)}, which the cluster says are in several network "
                             f"domains: {', '.join(sorted(domains))}")
    return lines


def counts(placements: Mapping[str, Placement], known: Mapping[str, Host], here: str) -> str:
    """How much of these placements is there, in words."""
    needs = wanted(placements.values(), here)
    there = [name for name in needs if lives(name, known)]
    text = f"{len(there)} of {len(needs)} hosts"
    if total := needs.total():
        text += f", {sum(min(known[name].gpus, needs[name]) for name in there)} of {total} GPUs"
    return text


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
