"""How fast a run was, out of its journals: what an estimate for a run like it goes by.

A step is what it spent in phases that come with every step; checkpoints and validations are apart, since another
profile may want them more often. Least and most of a step are the quartiles of all after the first, since a run is the
sum of many; of the rest they are the least and the most that were seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import quantiles

from ..contract import Kind, Pace, Phase, RunFolderError
from ._schema import read_run
from .ledger import PhaseLedger

_APART = frozenset({Phase.VALIDATION, Phase.CHECKPOINT})


def pace_of(folder: Path) -> Pace:
    """The pace of the run in ``folder``; RunFolderError where no step of it was over."""
    ledger, started, saved, validated, finished = PhaseLedger(), list[float](), list[float](), list[float](), set[int]()
    name, what, starting, evaluating = "", "run", True, False
    for event in read_run(folder):
        evaluating = evaluating or event.kind == Kind.EVALUATION_STARTED
        if event.kind in (Kind.RUN_STARTED, Kind.RESUMED, Kind.EVALUATION_STARTED):
            name, starting = event.data.get("profile", name), True
            what = "simulation" if event.data.get("modelled") else what
        elif event.kind == Kind.PHASE and starting and event.data["phase"] != Phase.STARTUP:
            started, starting = [*started, event.elapsed_s], False
        elif event.kind in (Kind.CHECKPOINT, Kind.VALIDATION):
            (saved if event.kind == Kind.CHECKPOINT else validated).append(event.data["seconds"])
        elif event.kind == Kind.STEP and event.step is not None:
            finished.add(event.step)
        if not evaluating:
            ledger.add(event)
    spent = {step: sum(seconds for phase, seconds in phases.items() if phase not in _APART)
             for step, phases in sorted(ledger.steps().items()) if step in finished}
    if not spent:
        raise RunFolderError(f"{folder} has no step that is over, so it has no pace", hint="name a run that trained")
    first, *later = spent.values()
    unseen = [what for what, seen in (("checkpoint", saved), ("validation", validated)) if not seen]
    counted = f"; it had no {' and no '.join(unseen)}, which count as nothing" if unseen else ""
    return Pace(_extremes(started), (first, first), _middle(later or [first]), _extremes(saved), _extremes(validated),
                0.0, f"{what} {folder.resolve().name} of profile {name}, {len(spent)} steps{counted}")


def _extremes(seconds: Sequence[float]) -> tuple[float, float]:
    return min(seconds, default=0.0), max(seconds, default=0.0)


def _middle(seconds: Sequence[float]) -> tuple[float, float]:
    """The quartiles."""
    if len(seconds) < 2:
        return _extremes(seconds)
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high
