"""Which sequence is in which cache slot. Pure bookkeeping, no tensors.

A slot is *busy* while a request runs in it and *idle* afterwards; an idle slot keeps its sequence so that a prompt that
extends it, or begins like it, need not be computed again. A prompt is placed by the longest common prefix with the
slots of its affinity group: in the idle slot it extends, else in the slot unused for longest, into which the prefix is
copied from its donor. A donor that is still computing the shared prefix makes the prompt wait rather than
compute it twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
_NONE = np.zeros(0, np.int32)


@dataclass(slots=True)
class Slot:
    """``known`` is the sequence other prompts may share: the running request's prompt, or all of an idle slot's.
    ``written`` tokens are in the cache."""

    index: int
    known: Tokens = field(default_factory=lambda: _NONE)
    written: int = 0
    affinity: str = ""
    busy: bool = False
    used: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a prompt goes: ``slot``, with its first ``shared`` tokens copied from ``donor`` (None: there already)."""

    slot: Slot
    donor: Slot | None
    shared: int


class SlotTable:
    """All slots of one cache."""

    def __init__(self, count: int) -> None:
        self.slots = [Slot(index) for index in range(count)]
        self._groups: dict[str, set[int]] = defaultdict(set)
        self._tick = 0

    @property
    def busy(self) -> int:
        return sum(slot.busy for slot in self.slots)

    def place(self, prompt: Tokens, affinity: str) -> Place | None:
        """Take a slot for ``prompt``; None where it has to wait for a slot or for a donor."""
        donor, shared = self._donor(prompt, affinity)
        if donor is not None and donor.written < shared:
            return None
        if donor is not None and not donor.busy and donor.written == shared:
            return self._take(donor, None, shared, prompt, affinity)
        target = min((slot for slot in self.slots if not slot.busy),
                     key=lambda slot: (slot is donor, slot.used, slot.index), default=None)
        if target is None:
            return None
        return self._take(target, donor if target is not donor else None, shared, prompt, affinity)

    def release(self, slot: Slot, sequence: Tokens) -> None:
        """The request in ``slot`` has ended with ``sequence``, of which ``slot.written`` tokens are cached."""
        slot.busy, slot.known = False, sequence[:slot.written]
        self._touch(slot)

    def forget_all(self) -> None:
        """Nothing is cached any more; busy slots stay busy."""
        for slot in self.slots:
            slot.written = 0
            if not slot.busy:
                slot.known, slot.used = _NONE, 0

    def _donor(self, prompt: Tokens, affinity: str) -> tuple[Slot | None, int]:
        """The slot to share with, and how many tokens; at least one of the prompt is always computed."""
        best, shared = None, 0
        for index in sorted(self._groups.get(affinity, ())):
            slot = self.slots[index]
            common = _common(slot.known, prompt[:-1])
            if common > shared or (best is not None and common == shared > 0 and _better(slot, best, shared)):
                best, shared = slot, common
        return best, shared

    def _take(self, slot: Slot, donor: Slot | None, shared: int, prompt: Tokens, affinity: str) -> Place:
        if slot.affinity != affinity:
            self._groups[slot.affinity].discard(slot.index)
            if not self._groups[slot.affinity]:
                del self._groups[slot.affinity]
            self._groups[affinity].add(slot.index)
        slot.known, slot.written, slot.affinity, slot.busy = prompt, shared, affinity, True
        self._touch(slot)
        return Place(slot, donor, shared)

    def _touch(self, slot: Slot) -> None:
        self._tick += 1
        slot.used = self._tick


def _better(slot: Slot, best: Slot, shared: int) -> bool:
    """Of two that share as much: one whose prefix is ready, then one that can be extended in place."""
    def rank(candidate: Slot) -> tuple[bool, bool]:
        return candidate.written >= shared, not candidate.busy and candidate.written == shared

    return rank(slot) > rank(best)


def _common(a: Tokens, b: Tokens) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
