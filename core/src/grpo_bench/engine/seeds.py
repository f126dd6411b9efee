"""One seed tree from the run's seed: every consumer derives its own branch by name, so none shares a stream."""

from __future__ import annotations

import hashlib


def branch(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the consumer that ``names`` spells, the same on every machine and Python."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
