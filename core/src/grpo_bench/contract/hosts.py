"""Placements seen from the hosts: who sits where, what stays together, and which groups reach beyond a domain.

Hosts belong to network *domains* where the hardware names them; all others are one domain without a name. Workers take
the GPUs of a host in the order of the placements and of their ranks. A role's *units* are what stays together: its
largest groups that exchange most, or its workers one by one where it names none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .fabric import Need, Placement
from .picture import Crossing, Host, Picture, Units
from .roles import Role

WORKER = "worker"
"""The kind of a group that is one worker."""
TOGETHER = ("expert", "tensor")
"""Kinds of groups that units are made of."""
_COUNTED = (Role.TRAINER.value, Role.GENERATOR.value)
"""Roles whose units have numbers in a picture."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker on one of its hosts, with the numbers of the GPUs that it has there; none where it shares them."""

    role: str
    rank: int
    host: str
    domain: str
    gpus: tuple[int, ...]


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


@dataclass(frozen=True)
class Layout:
    """Where a run's workers sit; ``domains`` has the hosts of each network domain, in the hardware's order."""

    placements: Mapping[str, Placement]
    needs: Mapping[str, Need] = field(default_factory=dict)
    domains: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Those that somebody sits on."""
        return tuple(dict.fromkeys(host for placement in self.placements.values() for host in placement.nodes))

    def seats(self) -> tuple[Seat, ...]:
        """Every worker on every host of its own, by role and rank."""
        domain_of, taken, found = self._domain_of(), dict[str, int](), []
        for role, placement in self.placements.items():
            for rank, hosts in enumerate(placement.hosts):
                for host in hosts:
                    first = taken.get(host, 0)
                    taken[host] = first + placement.gpus_per_host
                    found.append(Seat(role, rank, host, domain_of[host], tuple(range(first, taken[host]))))
        return tuple(found)

    def picture(self) -> Picture:
        """The same to be drawn, hosts that nobody sits on as well; empty where nobody is placed on a host by name."""
        units = {role: self.units(role) for role in self.placements if role in _COUNTED}
        if not self.hosts:
            return Picture()
        unit_of = {role: {rank: number for number, unit in enumerate(found) for rank in unit}
                   for role, (_, found) in units.items()}
        ranks: dict[str, dict[str, list[int]]] = {host: {} for host in self._domain_of()}
        for seat in self.seats():
            ranks[seat.host].setdefault(seat.role, []).append(seat.rank)
        spares = {spare for placement in self.placements.values() for some in placement.spares.values()
                  for spare in some}
        hosts = tuple(Host(
            host, domain, {role: tuple(some) for role, some in ranks[host].items()},
            {role: tuple(dict.fromkeys(unit_of[role][rank] for rank in some if rank in unit_of[role]))
             for role, some in ranks[host].items() if role in unit_of},
            host in spares and not ranks[host]) for host, domain in self._domain_of().items())
        kinds = {role: Units(kind, len(found), max(map(len, found))) for role, (kind, found) in units.items()}
        return Picture(hosts, kinds, self.crossings())

    def units(self, role: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
        """The kind of a role's units, and the ranks of each."""
        groups = self.needs[role].groups if role in self.needs else {}
        kinds = [kind for kind in TOGETHER if any(len(group) > 1 for group in groups.get(kind, ()))]
        if not kinds:
            return WORKER, tuple((rank,) for rank in range(self.placements[role].workers))
        kind = max(kinds, key=lambda name: max(map(len, groups[name])))
        return kind, groups[kind]

    def spans(self) -> tuple[Span, ...]:
        """What each kind of group reaches over; a worker on several hosts is a group of its own."""
        domain_of, found = self._domain_of(), []
        for role, kind, groups in self._groups():
            hosts = [some for _, some in groups]
            domains = [{domain_of[host] for host in some} for some in hosts]
            found.append(Span(role, kind, len(groups), max(len(group) for group, _ in groups), max(map(len, hosts)),
                              max(map(len, domains)), sum(len(some) > 1 for some in domains)))
        return tuple(found)

    def crossings(self) -> tuple[Crossing, ...]:
        """Every group that leaves its domain."""
        domain_of, found = self._domain_of(), []
        for role, kind, groups in self._groups():
            for number, (group, hosts) in enumerate(groups):
                domains = tuple(dict.fromkeys(domain_of[host] for host in hosts))
                if len(domains) > 1:
                    found.append(Crossing(role, kind, number, group, domains))
        return tuple(found)

    def _groups(self) -> Iterator[tuple[str, str, list[tuple[tuple[int, ...], tuple[str, ...]]]]]:
        """By role and kind, each group with its hosts."""
        for role, placement in self.placements.items():
            workers = placement.hosts
            if not workers or role not in self.needs:
                continue
            alone = {WORKER: tuple((rank,) for rank in range(len(workers)))} if len(workers[0]) > 1 else {}
            for kind, groups in {**alone, **self.needs[role].groups}.items():
                if groups:
                    yield role, kind, [(group, tuple(dict.fromkeys(host for rank in group for host in workers[rank])))
                                       for group in groups]

    def _domain_of(self) -> dict[str, str]:
        """The domain of each host, in the hardware's order; hosts that it does not name come last."""
        named = {host: name for name, hosts in self.domains.items() for host in hosts}
        return named | {host: "" for host in self.hosts if host not in named}
