"""Where the time of laptop steps goes, phase by phase, and the rollouts' own, hop by hop, from a short run's record.

Takes a minute, so it runs only where it is named: ``make bench ARGS=phases``. Shares are of the steps' wall clock; the
first step, which warms caches, and the validation at the end stand apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from grpo_bench.observers.journal import read_events
from grpo_bench.observers.ledger import HopLedger, PhaseLedger

from ._short import short_run

ON_REQUEST = True
_APART = ("validation", "checkpoint")


def run() -> Iterator[str]:
    phases, hops = PhaseLedger(), HopLedger()
    with short_run() as (folder, _):
        for event in read_events(folder):
            phases.add(event)
            hops.add(event)
    first, *later = [steps for number, steps in sorted(phases.steps().items()) if number]
    spent: dict[str, list[float]] = defaultdict(list)
    for step in later:
        for phase, seconds in step.items():
            spent[phase].append(seconds)
    total = sum(median(values) for phase, values in spent.items() if phase not in _APART)
    yield f"{'phase':<20}{'s/step':>8}{'share':>8}{'first step':>12}"
    for phase, values in spent.items():
        share = "apart" if phase in _APART else f"{median(values) / total:.1%}"
        yield f"{phase:<20}{median(values):>8.2f}{share:>8}{first.get(phase, 0.0):>12.2f}"
    yield f"{'hop':<20}{'s/rollout':>10}{'share':>8}"
    for name, hop in hops.in_order():
        yield f"{name:<20}{hop.total / hops.rollouts:>10.3f}{hop.total / hops.seconds:>8.1%}"
