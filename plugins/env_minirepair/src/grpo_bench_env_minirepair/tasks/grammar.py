"""What a family of repair tasks is.

A *family* is a small program with *slots*. A slot has options, each of which makes a correct program, and faults,
which never do. Words and code are rendered from the same slot values, so that the statement says exactly what the
correct program does; a fault is one slot's value changed in the code alone. Values and lines are templates over *roles*
(``xs``, ``k``...), and every task draws an identifier for each role.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Slot:
    """``options`` may be true, ``faults`` may not; ``operator`` names the kind of fault that a change here is."""

    operator: str
    options: tuple[str, ...]
    faults: tuple[str, ...] = ()


RETURN = Slot("missing return", ("return ",), ("",))
FIXED = ("",)


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace line ``line`` (counted from 1) by ``text``."""

    line: int
    text: str


class Family:
    """Base of all families. ``roles`` maps each role to the identifiers it may get, parameters among them."""

    slots: Mapping[str, Slot]
    roles: Mapping[str, Sequence[str]]
    signature: str

    @property
    def name(self) -> str:
        return type(self).__name__

    def words(self, v: Values) -> str:
        """What the function returns, as a template over roles."""
        raise NotImplementedError

    def body(self, v: Values) -> list[str]:
        """The lines under the ``def``, indented, as templates over roles."""
        raise NotImplementedError

    def arguments(self, r: random.Random) -> list[Any]:
        """One random argument list."""
        raise NotImplementedError

    def draw_values(self, r: random.Random) -> dict[str, str]:
        return {name: r.choice(slot.options) for name, slot in self.slots.items()}

    def draw_names(self, r: random.Random) -> dict[str, str]:
        """A distinct identifier for every role."""
        names: dict[str, str] = {}
        for role, pool in self.roles.items():
            taken = set(names.values())
            names[role] = r.choice([name for name in pool if name not in taken])
        return names

    def render(self, function: str, values: Values, names: Mapping[str, str]) -> list[str]:
        """The whole file, line by line."""
        lines = [f"def {{f}}({self.signature}):", *("    " + line for line in self.body(values))]
        return [line.format(f=function, **names) for line in lines]

    def changes(self, function: str, values: Values, names: Mapping[str, str]) -> dict[Edit, str]:
        """Every change of one slot that alters exactly one line of this rendering, with the slot's name."""
        before = self.render(function, values, names)
        found: dict[Edit, str] = {}
        for slot_name, slot in self.slots.items():
            for value in (*slot.options, *slot.faults):
                if value != values[slot_name]:
                    edit = single_change(before, self.render(function, {**values, slot_name: value}, names))
                    if edit is not None:
                        found.setdefault(edit, slot_name)
        return found


def single_change(before: Sequence[str], after: Sequence[str]) -> Edit | None:
    """The edit between two files that differ in exactly one line, else None."""
    if len(before) != len(after):
        return None
    different = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    return Edit(different[0] + 1, after[different[0]]) if len(different) == 1 else None


def integers(r: random.Random, low: int = -4, high: int = 6, count: int | None = None) -> list[int]:
    return [r.randint(low, high) for _ in range(count or r.randint(3, 6))]
