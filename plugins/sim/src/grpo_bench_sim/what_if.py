"""What if: variants of a plan, each simulated with the seeds of the plan itself.

Random streams are keyed by what they are for, so that a variant and its base draw the same rollouts and the same
updates: a difference is the variant's. All variants are taken to meet the target at the same step. Whether they would
is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from grpo_bench.contract import GrpoBenchError, InputError, Interrupted

from .reading import RunTimes, scores_of
from .simulation import Simulation, seeds_named, simulate
from .standing import Planner
from .statuses import Standing, standings
from .units import unit_of
from .variants import Variant, variants

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

Spent = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Change:
    """What came of a variant, in minutes; all of it None or empty where ``refused`` says why it was not simulated.

    ``to_target`` and ``whole`` are medians over the seeds, of the score and of the whole run. ``minutes`` and ``moves``
    (by ledger phase) are medians of the differences to the base under the same seed: of the score, or of the whole run
    where one of the two has none; ``whole_minutes`` and ``whole_moves`` are those of the whole run. ``forbidden`` is
    what the ruleset has against it besides what it has against the base, ``because`` what makes it an extrapolation
    besides what makes the base one, ``note`` what else there is to know."""

    variant: Variant
    to_target: float | None = None
    whole: float | None = None
    minutes: float | None = None
    moves: Mapping[str, float] = field(default_factory=dict)
    whole_minutes: float | None = None
    whole_moves: Mapping[str, float] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    standings: tuple[Standing, ...] = ()
    because: tuple[str, ...] = ()
    note: str = ""
    refused: str = ""

    @property
    def phases(self) -> list[tuple[str, float]]:
        """The ledger phases that move and by how much, the most first: ``late``, of the whole run."""
        moves = self.whole_moves if self.late else self.moves
        return sorted(moves.items(), key=lambda item: -abs(item[1]))

    @property
    def phase(self) -> str:
        """The one that moves most; empty where none does."""
        return self.phases[0][0] if self.phases else ""

    @property
    def phase_minutes(self) -> float:
        return self.phases[0][1] if self.phases else 0.0

    @property
    def late(self) -> bool:
        """Whether nothing moves but what comes after the moment that counts."""
        return not self.moves and bool(self.whole_moves)


def what_if(planner: Planner, base: Simulation, seeds: Sequence[int],
            tell: Callable[[str], None] = lambda line: None) -> list[Change]:
    """The base as it is, and every variant that means something for it, under ``seeds``, its first ones. ``tell`` is
    told of each before it is simulated."""
    found = [_unchanged(base, seeds)]
    for variant in variants(base.plan, base.model, base.scenario):
        tell(f"what if: {variant.name}")
        found.append(changed(planner, base, variant, seeds))
    return found


def changed(planner: Planner, base: Simulation, variant: Variant, seeds: Sequence[int]) -> Change:
    """What comes of one variant."""
    scenario, note = variant.scenario, ""
    try:
        plan = planner(variant.overrides)
    except InputError as error:
        if variant.instead is None:
            return Change(variant, refused=error.message)
        plan, scenario = base.plan, variant.instead
        note = f"as if its parts could be divided so; no plan can be made of it: {error.message}"
    try:
        found = simulate(plan, base.model, scenario, seeds, None)
    except Interrupted:
        raise
    except GrpoBenchError as error:
        return Change(variant, note=note, refused=error.message)
    pairs = list(zip(found.runs, base.runs))
    whole = [(after.ledger, ago.ledger) for after, ago in pairs]
    scored = scores_of(run for pair in pairs for run in pair)
    counted = [(after.counted, ago.counted) for after, ago in pairs] if scored else whole
    stands, least = standings(plan, base.model, scenario), unit_of(base.runs).least
    return Change(
        variant, _to_target(found.runs), _minutes(run.wall for run in found.runs), *_differences(counted, least),
        *_differences(whole, least), forbidden(plan, base.plan), stands,
        reasons(stands, standings(base.plan, base.model, base.scenario)), note)


def reasons(found: Sequence[Standing], known: Sequence[Standing]) -> tuple[str, ...]:
    """Why what is ``found`` is an extrapolation, where there is more to it than what makes the ``known`` one."""
    before = {(item.quantity, cause) for item in known for cause in item.causes}
    return tuple("; assumed: ".join([f"{item.quantity}: {item.why}", *item.inside]) for item in found
                 if any((item.quantity, cause) not in before for cause in item.causes))


def forbidden(plan: Plan, base: Plan | None = None) -> tuple[str, ...]:
    """What the ruleset has against a plan and not against the base, where there is one."""
    before = {(finding.rule, finding.message) for finding in (base.findings if base else ()) if not finding.ok}
    return tuple(f"{finding.rule}: {finding.message}" for finding in plan.findings
                 if not finding.ok and not finding.unknown and (finding.rule, finding.message) not in before)


def _unchanged(base: Simulation, seeds: Sequence[int]) -> Change:
    runs = base.runs[:len(seeds)]
    return Change(Variant(f"as it is, {seeds_named(seeds)}", (), base.scenario), _to_target(runs),
                  _minutes(run.wall for run in runs), 0.0, whole_minutes=0.0,
                  standings=standings(base.plan, base.model, base.scenario))


def _differences(pairs: Sequence[tuple[Spent, Spent]], least: float) -> tuple[float, dict[str, float]]:
    """Minutes by which a variant differs from its base, and those of each phase that differs by ``least`` or more."""
    phases = dict.fromkeys(phase for pair in pairs for spent in pair for phase in spent)
    moves = {phase: _minutes(after.get(phase, 0.0) - ago.get(phase, 0.0) for after, ago in pairs) for phase in phases}
    return (_minutes(sum(after.values()) - sum(ago.values()) for after, ago in pairs),
            {phase: moved for phase, moved in moves.items() if abs(moved) >= least})


def _to_target(runs: Sequence[RunTimes]) -> float | None:
    """Median minutes; None where a run has no such time."""
    scores = scores_of(runs)
    return _minutes(scores) if scores else None


def _minutes(seconds: Iterable[float]) -> float:
    return median(seconds) / 60
