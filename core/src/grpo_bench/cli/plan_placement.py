"""Where a plan's workers sit, as text: a picture of the hosts, a table of the ranks, and how far groups reach.

The table has a line for each stretch of ranks that sit alike: in one domain, as many on each host or each on as many
hosts, with the same GPUs. Of all ranks one by one ``ranks`` makes a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from .columns import columns, wrapped

if TYPE_CHECKING:
    from ..contract.hosts import Layout, Seat
    from ..contract.picture import Picture

_HEAD = ("role", "ranks", "hosts", "domain", "GPUs")


def placement(layout: Layout, room: int) -> Iterator[str]:
    """All of it; nothing where all workers sit on one host that nobody names."""
    picture = layout.picture()
    if not picture.hosts:
        return
    yield from _picture(picture, room)
    yield ""
    table = columns([_HEAD, *_stretches(layout, picture)])
    for line in table.splitlines():
        yield from wrapped(line, room, 6)
    yield ""
    for line in _reach(layout, picture):
        yield from wrapped(line, room, 4)


def ranks(layout: Layout) -> Iterator[str]:
    """A line for each rank on each of its hosts, and one for each group that leaves its domain."""
    from ..contract.picture import stretches
    rows = [(seat.role, str(seat.rank), seat.host, seat.domain, stretches(seat.gpus)) for seat in layout.seats()]
    idle = [("spare" if host.spare else "idle", "", host.name, host.domain, "") for host in layout.picture().hosts
            if not host.ranks]
    yield from columns([("role", "rank", "host", "domain", "GPUs"), *rows, *idle]).splitlines()
    crossings = layout.crossings()
    if crossings:
        rows = [(item.role, item.kind, str(item.number), stretches(item.ranks), ", ".join(item.domains))
                for item in crossings]
        yield from ("", *columns([("role", "group", "number", "ranks", "domains"), *rows]).splitlines())


def _picture(picture: Picture, room: int) -> Iterator[str]:
    """A row for each domain, a cell for each host."""
    names = {name: name or "hosts" for name in picture.domains}
    margin = max(map(len, names.values())) + 2
    width = max(len(host.label) for host in picture.hosts) + 1
    fitting = max(1, (room - margin) // width)
    for name, hosts in picture.domains.items():
        for start in range(0, len(hosts), fitting):
            cells = "".join(host.label.ljust(width) for host in hosts[start:start + fitting])
            yield (f"{'' if start else names[name]:<{margin}}" + cells).rstrip()
    for _, sign, words in picture.legend:
        yield from wrapped(f"{'':<{margin}}{sign}: {words}", room, margin + 2)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Ranks ``first`` to ``last`` on ``hosts``: ``each`` of them on each host, or where it is negative each on as many.
    ``gpus`` are those that the ranks of one host have in turn."""

    role: str
    first: int
    last: int
    hosts: tuple[str, ...]
    domain: str
    gpus: tuple[tuple[int, ...], ...]
    each: int

    def followed_by(self, other: _Stretch, place: Mapping[str, int]) -> bool:
        """Whether ``other`` goes on where this ends, in the same way, further on in the same domain."""
        alike = (self.role, self.domain, self.gpus, self.each) == (other.role, other.domain, other.gpus, other.each)
        return alike and other.first == self.last + 1 and place[other.hosts[0]] > place[self.hosts[-1]]


def _stretches(layout: Layout, picture: Picture) -> Iterator[tuple[str, ...]]:
    """The rows of the table, hosts that nobody sits on last."""
    place = {host.name: number for number, host in enumerate(picture.hosts)}
    found: list[_Stretch] = []
    for block in _blocks(layout.seats()):
        if found and found[-1].followed_by(block, place):
            found[-1] = replace(found[-1], last=block.last, hosts=found[-1].hosts + block.hosts)
        else:
            found.append(block)
    for stretch in found:
        ranks = str(stretch.first) if stretch.first == stretch.last else f"{stretch.first} to {stretch.last}"
        each = f", each on {-stretch.each}" if stretch.each < 0 else (
            f", {stretch.each} on each" if stretch.each > 1 else "")
        yield stretch.role, ranks, _named(stretch.hosts, place) + each, stretch.domain, _gpus(stretch.gpus)
    empty = [host for host in picture.hosts if not host.ranks]
    for (spare, domain), some in groupby(empty, key=lambda host: (host.spare, host.domain)):
        yield "spare" if spare else "idle", "", _named([host.name for host in some], place), domain, ""


def _blocks(seats: Sequence[Seat]) -> Iterator[_Stretch]:
    """Ranks that share the same hosts, one after the other."""
    workers = [tuple(some) for _, some in groupby(seats, key=lambda seat: (seat.role, seat.rank))]
    for _, some in groupby(workers, key=lambda worker: (worker[0].role, [seat.host for seat in worker])):
        block = list(some)
        first = block[0][0]
        hosts = tuple(seat.host for seat in block[0])
        gpus = tuple(dict.fromkeys(seat.gpus for worker in block for seat in worker))
        yield _Stretch(first.role, first.rank, block[-1][0].rank, hosts,
                       ", ".join(dict.fromkeys(seat.domain for seat in block[0])), gpus,
                       len(block) if len(hosts) == 1 else -len(hosts))


def _named(hosts: Sequence[str], place: Mapping[str, int]) -> str:
    if len(hosts) == 1:
        return hosts[0]
    gaps = any(place[after] != place[before] + 1 for before, after in pairwise(hosts))
    return f"{hosts[0]} to {hosts[-1]}" + (f", {len(hosts)} of them" if gaps else "")


def _gpus(patterns: Sequence[Sequence[int]]) -> str:
    """``0-3``, or of several ranks in turn ``0-3, 1 each``."""
    from ..contract.picture import stretches
    if len({len(pattern) for pattern in patterns}) > 1:
        return " | ".join(map(stretches, patterns))
    together = stretches([number for pattern in patterns for number in pattern])
    return f"{together}, {len(patterns[0])} each" if len(patterns) > 1 else together


def _reach(layout: Layout, picture: Picture) -> Iterator[str]:
    """How far each kind of group reaches, and which of them leave their domain for which others."""
    spans = layout.spans()
    for span in spans:
        what = (_counted(span.groups, "worker") if span.kind == "worker" else
                f"{_counted(span.groups, f'{span.kind} group')} of {span.size}")
        leaving = f"; {span.crossing} of them leave a domain" if span.crossing else ""
        yield (f"{span.role}: {what}, each on {_counted(span.hosts, 'host')}, in {_counted(span.domains, 'domain')}"
               f"{leaving}")
    for line in picture.crossed:
        yield f"  across domains: {line}"
    for role, placed in layout.placements.items():
        if placed.nodes and not any(span.role == role for span in spans):
            yield f"{role}: {_counted(placed.workers, 'worker')} on {_counted(len(set(placed.nodes)), 'host')}"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
