"""The picture of a placement: a row of cells for each domain, a cell for each host, units outlined.

Drawn from plain data (:class:`~grpo_bench.contract.picture.Picture`) for a given width; the height follows. Colours are
classes, which ``placement.css`` gives: the report's page has it beside its own, a picture on its own has it inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from ..contract import Role
from ..contract.picture import SPARE, Host, Picture
from ._svg import tag, text
from ._text import counted

_WIDTH = 1080
_CELL, _HEIGHT, _GAP = 50.0, 30.0, 4.0
_TITLE, _LINE = 20.0, 18.0


def placement_svg(picture: Picture) -> str:
    """A file of its own."""
    style = files("grpo_bench.observers").joinpath("placement.css").read_text(encoding="utf-8")
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return head + placed(picture, _WIDTH, "alone", f"<style>{escape(style, quote=False)}</style>", 12) + "\n"


def placed(picture: Picture, width: int, class_: str, style: str = "", edge: int = 0) -> str:
    """The picture as one element of SVG with an empty ``edge``; screen readers get its title and a description."""
    widest = max(_CELL, 8.0 + 7.0 * max(len(host.label) for host in picture.hosts))
    fitting = min(max(1, int(width // widest)), max(map(len, picture.domains.values())))
    cell, y, parts = width / fitting, 0.0, []
    for domain, hosts in picture.domains.items():
        parts.append(text(0, y + 14, domain or "hosts", "domain"))
        y += _TITLE
        for start in range(0, len(hosts), fitting):
            parts += _row(hosts[start:start + fitting], cell, y)
            y += _HEIGHT + 2 * _GAP
        y += _GAP
    for role, sign, words in picture.legend:
        parts += [tag("rect", x=0.0, y=y + 3, width=12.0, height=12.0, class_=_class(role, sign)),
                  text(20, y + 13, f"{sign}: {words}", "key")]
        y += _LINE
    about = tag("title", escape(title(picture))) + tag("desc", escape(described(picture)))
    return tag("svg", style + about + "".join(parts), xmlns="http://www.w3.org/2000/svg", class_=f"placement {class_}",
               viewBox=f"{-edge} {-edge} {width + 2 * edge} {y + 2 * edge:.0f}", role="img")


def title(picture: Picture) -> str:
    hosts, domains = len(picture.hosts), len(picture.domains)
    named = f" in {counted(domains, 'domain')}" if any(picture.domains) else ""
    return f"Who sits where: {counted(hosts, 'host')}{named}"


def described(picture: Picture) -> str:
    """The same in words, a sentence for each domain."""
    sentences = []
    for domain, hosts in picture.domains.items():
        groups = [(_state(host), host) for host in hosts]
        words = (f"{counted(len(list(some)), 'host')} {state}" for state, some in groupby(groups, key=lambda at: at[0]))
        sentences.append(f"{domain or 'hosts'}: {', then '.join(words)}.")
    return " ".join([*sentences, *(f"Across domains: {line}." for line in picture.crossed)])


def _state(host: Host) -> str:
    if host.ranks:
        return f"with {' and '.join(host.ranks)}"
    return "spare" if host.spare else "idle"


def _row(hosts: Sequence[Host], cell: float, y: float) -> Iterator[str]:
    """Cells side by side, an outline around those that hold the same units."""
    for number, host in enumerate(hosts):
        yield _cell(host, number * cell, cell, y)
    at = 0
    for units, some in groupby(hosts, key=lambda host: host.units):
        count = len(list(some))
        if units:
            yield tag("rect", x=at * cell + 1, y=y, width=count * cell - 2, height=_HEIGHT + _GAP, rx=5, class_="unit")
        at += count


def _cell(host: Host, x: float, cell: float, y: float) -> str:
    """A host: its colours are those of the roles there, side by side where they are several; beneath those that have
    units a strip for those that have none."""
    roles, below = list(host.units) or list(host.ranks) or [""], [role for role in host.ranks if role not in host.units]
    width = (cell - 2 * _GAP) / len(roles)
    ranks = "; ".join(f"{role} rank{'s' * (len(some) > 1)} {', '.join(map(str, some))}"
                      for role, some in host.ranks.items())
    where = f"{host.name}, {host.domain}" if host.domain else host.name
    boxes = "".join(tag("rect", x=x + _GAP + number * width, y=y + _GAP / 2, width=width, height=_HEIGHT,
                        class_=_class(role, host.label)) for number, role in enumerate(roles))
    if host.units and below:
        boxes += tag("rect", x=x + _GAP, y=y + _HEIGHT + _GAP / 2 - 5, width=cell - 2 * _GAP, height=5.0,
                     class_=_class(below[0], ""))
    return tag("g", tag("title", escape(f"{where}: {ranks or _state(host)}")) + boxes
               + text(x + cell / 2, y + _HEIGHT / 2 + 5, host.label, "host", "middle"), class_="node")


def _class(role: str, sign: str) -> str:
    """The class of a box: by role, or whether it is spare or idle."""
    if role:
        return f"at-{role if role in (Role.TRAINER, Role.GENERATOR) else 'other'}"
    return "spare" if sign == SPARE else "idle"
