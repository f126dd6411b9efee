"""Placements seen from the hosts: who is on which host, and which groups of workers reach beyond one.

Hosts belong to network domains where the hardware names them; all others are one domain without a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract import Need, Placement

WORKER = "worker"
"""The kind of a span that is one worker on several hosts."""


@dataclass(frozen=True, slots=True)
class Row:
    """Hosts of one domain that hold the same roles, with the number of workers of each."""

    domain: str
    hosts: tuple[str, ...]
    workers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Span:
    """Groups of one kind: how many, of how many workers, on how many hosts and in how many domains each at most, and
    how many of them leave a domain."""

    role: str
    kind: str
    groups: int
    size: int
    hosts: int
    domains: int
    crossing: int


def rows(placements: Mapping[str, Placement], machine: Mapping[str, Any]) -> tuple[Row, ...]:
    """A row for each stretch of hosts that hold the same roles, in the hardware's order; a worker on several hosts is
    counted on its first."""
    domain_of = _domains(placements, machine)
    held: dict[str, dict[str, int]] = {host: {} for host in domain_of}
    for role, placement in placements.items():
        for worker in _hosts(placement):
            for number, host in enumerate(worker):
                held[host][role] = held[host].get(role, 0) + (number == 0)
    found: list[Row] = []
    for host, workers in held.items():
        last = found[-1] if found else None
        if last and last.domain == domain_of[host] and last.workers.keys() == workers.keys():
            summed = {role: last.workers[role] + count for role, count in workers.items()}
            found[-1] = Row(last.domain, (*last.hosts, host), summed)
        else:
            found.append(Row(domain_of[host], (host,), workers))
    return tuple(found)


def spans(needs: Mapping[str, Need], placements: Mapping[str, Placement],
          machine: Mapping[str, Any]) -> tuple[Span, ...]:
    """What each kind of group reaches over; a worker on several hosts is a group of its own."""
    domain_of, found = _domains(placements, machine), []
    for role, placement in placements.items():
        workers = _hosts(placement)
        if not workers or role not in needs:
            continue
        alone = {WORKER: tuple((worker,) for worker in range(len(workers)))} if len(workers[0]) > 1 else {}
        for kind, groups in {**alone, **needs[role].groups}.items():
            hosts = [{host for worker in group for host in workers[worker]} for group in groups]
            domains = [{domain_of[host] for host in some} for some in hosts]
            found.append(Span(role, kind, len(groups), max(map(len, groups)), max(map(len, hosts)),
                              max(map(len, domains)), sum(len(some) > 1 for some in domains)))
    return tuple(found)


def _hosts(placement: Placement) -> list[tuple[str, ...]]:
    """The hosts of each worker; nothing where they are on this one."""
    each = len(placement.nodes) // placement.workers
    return [placement.nodes[start:start + each] for start in range(0, len(placement.nodes), each)] if each else []


def _domains(placements: Mapping[str, Placement], machine: Mapping[str, Any]) -> dict[str, str]:
    named = {host: name for name, hosts in machine.get("domains", {}).items() for host in hosts}
    return named | {host: "" for placement in placements.values() for host in placement.nodes if host not in named}
