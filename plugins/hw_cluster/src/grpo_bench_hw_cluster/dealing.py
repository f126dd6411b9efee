"""Which domain each unit goes to.

Units of the trainer are dealt out so that the generator's fit beside them, and then so that as few groups as possible
reach over several domains: first groups of ``context`` ranks, which exchange in every layer, then of ``data``, which
exchange all gradients, then of ``pipeline``, which pass on activations, then others; and then into as few domains as
possible. A search over all ways to deal finds the best; it starts with a good one, and where it would take too long the
best one so far is taken, always the same.

What is left over stays idle: first in domains that hold units of several nodes, evenly, since a node of those can only
be replaced by one of its own domain, and of those the trainer's before the generator's, and the fuller ones first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_bench.contract import Need

from .units import TOGETHER, Units

_BEFORE = ("context", "data", "pipeline")
_LOOKS = 20_000
"""Ways to deal that are looked at, those that are not finished included: a fraction of a second."""
_MOST_UNITS = 128
"""Above that no other way than the first is looked at."""

Links = Mapping[frozenset[int], int]
"""Units that groups of one kind tie together, and how many of these groups there are."""


def links_of(need: Need | None, units: Units | None) -> list[Links]:
    """By kind, the worst to cut first."""
    if need is None or units is None:
        return []
    unit_of = {worker: number for number, members in enumerate(units.members) for worker in members}
    kinds = sorted(need.groups.keys() - set(TOGETHER), key=lambda kind: (
        _BEFORE.index(kind) if kind in _BEFORE else len(_BEFORE), kind))
    tied = [Counter(frozenset(unit_of[worker] for worker in group) for group in need.groups[kind]) for kind in kinds]
    return [{members: count for members, count in counts.items() if len(members) > 1} for counts in tied]


def cost_of(dealt: Sequence[int], links: Sequence[Links]) -> tuple[int, ...]:
    """By kind how often groups leave a domain, then the number of domains."""
    return (*(sum(count * (len({dealt[unit] for unit in members}) - 1) for members, count in kind.items())
              for kind in links), len(set(dealt)))


def deal(sizes: Sequence[int], learning: Units, per: int, wanted: int, links: Sequence[Links]) -> list[int] | None:
    """The domain of each of the trainer's units, so that ``wanted`` units of ``per`` nodes fit beside them in domains
    of ``sizes``; None: they never do."""
    first = _filled(sizes, learning.count, learning.nodes, per)
    if _room(sizes, first, learning.nodes, per) < wanted:
        first, room = roomiest(sizes, learning.count, learning.nodes, per)
        if room < wanted:
            return None
    dealt = [domain for domain, share in enumerate(first) for _ in range(share)]
    if learning.count > _MOST_UNITS:
        return dealt
    return _Search(sizes, learning.nodes, per, wanted, links, dealt).best


def _filled(sizes: Sequence[int], count: int, nodes: int, per: int) -> list[int]:
    """Units by domain, the domain with most room filled first."""
    filled = [0] * len(sizes)
    for domain in sorted(range(len(sizes)), key=lambda number: -(sizes[number] // nodes)):
        filled[domain] = min(count, sizes[domain] // nodes)
        count -= filled[domain]
    return filled


def _room(sizes: Sequence[int], shares: Sequence[int], nodes: int, per: int) -> int:
    return sum((size - share * nodes) // per for size, share in zip(sizes, shares, strict=True))


def roomiest(sizes: Sequence[int], count: int, nodes: int, per: int) -> tuple[list[int], int]:
    """The shares of ``count`` units that leave room for most units of ``per`` nodes, and that number: most[k] counts
    them with k units placed so far."""
    most: list[int | None] = [0] + [None] * count
    chosen: list[list[int]] = []
    for size in sizes:
        after: list[int | None] = [None] * (count + 1)
        choice = [0] * (count + 1)
        for placed, room in enumerate(most):
            if room is None:
                continue
            for share in range(min(count - placed, size // nodes) + 1):
                found, at = room + (size - share * nodes) // per, placed + share
                best = after[at]
                if best is None or found > best:
                    after[at], choice[at] = found, share
        most = after
        chosen.append(choice)
    room, shares = most[count] or 0, []
    for choice in reversed(chosen):
        shares.append(choice[count])
        count -= choice[count]
    return shares[::-1], room


@dataclass(frozen=True, slots=True)
class _Tie:
    """Groups of a ``kind`` that tie a unit to ``earlier`` ones."""

    kind: int
    earlier: tuple[int, ...]
    count: int


class _Search:
    """Deals unit after unit, leaving off where what is dealt costs as much as the best way so far."""

    def __init__(self, sizes: Sequence[int], nodes: int, per: int, wanted: int, links: Sequence[Links],
                 first: list[int]) -> None:
        self._sizes, self._nodes, self._per = sizes, nodes, per
        self._ties = [[_Tie(kind, earlier, count) for kind, tied in enumerate(links) for members, count in tied.items()
                       if unit in members and (earlier := tuple(member for member in members if member < unit))]
                      for unit in range(len(first))]
        self.best, self._cost = first, list(cost_of(first, links))
        self._free, self._dealt, self._looks = list(sizes), [0] * len(first), _LOOKS
        self._visit(0, [0] * len(self._cost), sum(size // per for size in sizes) - wanted)

    def _visit(self, unit: int, cost: list[int], beyond: int) -> None:
        """``beyond`` units of the generator would fit more than have to."""
        if unit == len(self._dealt):
            self.best, self._cost = list(self._dealt), cost
            return
        untouched: set[int] = set()
        for domain, free in enumerate(self._free):
            taken = free // self._per - (free - self._nodes) // self._per
            if free < self._nodes or taken > beyond:
                continue
            if free == self._sizes[domain]:
                if free in untouched:
                    continue  # as good as another of its size
                untouched.add(free)
            more = self._more(unit, domain, cost)
            self._looks -= 1
            if more >= self._cost or self._looks < 0:
                continue
            self._dealt[unit] = domain
            self._free[domain] = free - self._nodes
            self._visit(unit + 1, more, beyond - taken)
            self._free[domain] = free

    def _more(self, unit: int, domain: int, cost: list[int]) -> list[int]:
        """What has been dealt costs so much with ``unit`` in ``domain``."""
        more = list(cost)
        more[-1] += self._free[domain] == self._sizes[domain]
        for tie in self._ties[unit]:
            more[tie.kind] += tie.count * (domain not in {self._dealt[earlier] for earlier in tie.earlier})
        return more


def engines(free: Sequence[int], per: int, wanted: int, bound: Sequence[bool]) -> list[int]:
    """How many of ``wanted`` units of ``per`` nodes each domain takes, where ``free`` nodes are free. ``bound`` says in
    which the trainer's units have several nodes."""
    taken = [nodes // per for nodes in free]
    idle = [nodes % per for nodes in free]
    for _ in range(sum(taken) - wanted):
        domain = min((number for number, count in enumerate(taken) if count),
                     key=lambda number: (per == 1 and not bound[number], idle[number], not bound[number],
                                         -taken[number], -number))
        taken[domain] -= 1
        idle[domain] += per
    return taken
