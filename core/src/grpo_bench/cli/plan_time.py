"""How long a plan's run may take, as text, against the time that such runs are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .columns import columns, wrapped

if TYPE_CHECKING:
    from ..registry.estimate import Duration, Estimate


def times(found: Estimate | None, room: int) -> Iterator[str]:
    """The lines of it; none where no pace is known."""
    from ..registry.estimate import fit
    if found is None:
        return
    rows = [(name, needed, found.assumed.get(name, "")) for name, needed in (
        ("start", found.start), ("training", found.training), ("checkpoints", found.checkpoints),
        ("evaluation", found.evaluation))]
    sums = {"in all": found.whole, **({"without evaluation": found.until_trained} if found.evaluation.most else {})}
    for name, needed in sums.items():
        judged = f"{fit(needed, found.wall_s)} the {found.wall_s / 60:g} minutes" if found.wall_s else ""
        rows.append((name, needed, judged))
    table = columns([(name, lasting(needed), words) for name, needed, words in rows if needed.most])
    for line in table.splitlines():
        yield from wrapped(line, room, 4)
    yield from wrapped(f"from {found.source}", room, 4)


def lasting(needed: Duration) -> str:
    """``12 to 15 s``, ``219 to 257 min``."""
    unit, name = (60, "min") if needed.most >= 600 else (1, "s")
    least, most = (f"{seconds / unit:,.{1 if needed.most / unit < 10 else 0}f}" for seconds in (
        needed.least, needed.most))
    return f"{least} {name}" if least == most else f"{least} to {most} {name}"
