"""What a picture of a placement shows: hosts, domain by domain, each with the units that sit there.

It is plain data: a run's first event holds it, and text and SVG are drawn from it alike. A role is called by its first
letter and the numbers of its units; one whose workers are not counted, such as rollout workers, by a small letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

SPARE, IDLE = "s", "-"


@dataclass(frozen=True, slots=True)
class Host:
    """By role the ranks on one host, and the units that they belong to. ``spare``: it waits for another to be lost."""

    name: str
    domain: str
    ranks: Mapping[str, Sequence[int]]
    units: Mapping[str, Sequence[int]]
    spare: bool

    @property
    def label(self) -> str:
        """A few letters: ``T0``, ``G0-3r``, ``s``, ``-``."""
        there = "".join(letter(role, bool(self.units.get(role))) + stretches(self.units.get(role, ()))
                        for role in self.ranks)
        return there or (SPARE if self.spare else IDLE)


@dataclass(frozen=True, slots=True)
class Units:
    """What the units of a role are: groups of a ``kind`` with ``size`` ranks, or single workers."""

    kind: str
    count: int
    size: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """A group that reaches beyond one domain: its number among those of its kind, its ranks and its domains."""

    role: str
    kind: str
    number: int
    ranks: Sequence[int]
    domains: Sequence[str]


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it. There are no hosts where all workers sit on one that nobody names."""

    hosts: Sequence[Host] = ()
    units: Mapping[str, Units] = field(default_factory=dict)
    crossings: Sequence[Crossing] = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Picture:
        """Out of its JSON form."""
        return cls(
            [Host(at["name"], at["domain"], at["ranks"], at["units"], at["spare"]) for at in data["hosts"]],
            {role: Units(units["kind"], units["count"], units["size"]) for role, units in data["units"].items()},
            [Crossing(at["role"], at["kind"], at["number"], at["ranks"], at["domains"]) for at in data["crossings"]])

    @property
    def domains(self) -> dict[str, list[Host]]:
        """The hosts of each domain."""
        found: dict[str, list[Host]] = {}
        for host in self.hosts:
            found.setdefault(host.domain, []).append(host)
        return found

    @property
    def legend(self) -> list[tuple[str, str, str]]:
        """What the letters mean: the role, or none for hosts that nobody sits on, its signs, and words."""
        found = []
        there = {role for host in self.hosts for role in host.ranks}
        for role in sorted(there, key=[*self.units, *sorted(there - self.units.keys())].index):
            units = self.units.get(role)
            if units is None:
                found.append((role, letter(role, False), f"{role} worker"))
                continue
            first, last = f"{letter(role, True)}0", f"{letter(role, True)}{units.count - 1}"
            what = f"{units.kind} group" if units.size > 1 else "worker"
            size = f" of {units.size}" if units.size > 1 else ""
            found.append((role, first if units.count == 1 else f"{first} to {last}",
                          f"{role}'s {what}{'s' * (units.count > 1)}{size}"))
        states = {host.label for host in self.hosts if not host.ranks}
        return found + [("", sign, word) for sign, word in ((SPARE, "spare"), (IDLE, "idle")) if sign in states]

    @property
    def crossed(self) -> list[str]:
        """In words, which groups reach beyond one domain: those of a kind between the same domains together."""
        between: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
        for item in self.crossings:
            between.setdefault((item.role, item.kind, tuple(item.domains)), []).append(item.number)
        return [f"{role} {kind}{'' if kind == 'worker' else ' group'}{'s' * (len(numbers) > 1)} {stretches(numbers)} "
                f"between {' and '.join(domains)}" for (role, kind, domains), numbers in between.items()]


def letter(role: str, counted: bool) -> str:
    """Large where units have numbers."""
    return role[:1].upper() if counted else role[:1].lower()


def stretches(numbers: Sequence[int]) -> str:
    """``0-3,7`` for 0, 1, 2, 3 and 7."""
    found = []
    for _, pairs in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        some = [number for _, number in pairs]
        found.append(str(some[0]) if len(some) == 1 else f"{some[0]}-{some[-1]}")
    return ",".join(found)
