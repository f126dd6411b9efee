"""A sweep: one setting, or one scale, over several values, each simulated with the same seeds."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from grpo_bench.contract import GrpoBenchError, InputError, Interrupted

from .model import Model, Quantity
from .reading import scores_of
from .simulation import Simulation, simulate
from .standing import Planner, Scenario
from .statuses import standings
from .what_if import forbidden, reasons

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

MOST = 20
"""Values of a sweep."""
_SCALE = "scale."


@dataclass(frozen=True, slots=True)
class Point:
    """One value as it was written, and its simulation; None where its runs fail, for the reason ``failed``. ``because``
    is what makes it an extrapolation besides what makes the profile as it is one, ``forbidden`` what the ruleset has
    against it besides what it has against that."""

    value: str
    simulation: Simulation | None
    failed: str = ""
    because: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()

    @property
    def to_target(self) -> tuple[float, float, float] | None:
        """Median, least and most minutes to target; None where a run has no such time."""
        scores = scores_of(self.simulation.runs) if self.simulation else []
        return _spread(scores) if scores else None

    @property
    def whole(self) -> tuple[float, float, float] | None:
        """The same of the whole run."""
        return _spread([run.wall for run in self.simulation.runs]) if self.simulation else None

    @property
    def phases(self) -> Mapping[str, float]:
        """Median minutes of each ledger phase, of the time to target or, where there is none, of the whole run."""
        runs = self.simulation.runs if self.simulation else ()
        spent = [run.ledger if self.to_target is None else run.counted for run in runs]
        return {phase: median(run.get(phase, 0.0) for run in spent) / 60
                for phase in dict.fromkeys(phase for run in spent for phase in run)}


@dataclass(frozen=True, slots=True)
class Sweep:
    """``key`` is a dotted key of the profile, or ``scale.`` and a quantity."""

    key: str
    points: tuple[Point, ...]


def parse(text: str) -> tuple[str, tuple[str, ...]]:
    """The key and the values of ``KEY=A,B,C``, the values as ``--set`` would take them."""
    key, equals, rest = text.partition("=")
    values = tuple(dict.fromkeys(value.strip() for value in _divided(rest)))
    if not key.strip() or not equals or not all(values):
        raise InputError(f"--sweep {text}: should have the form KEY=A,B,C, as in schedule.max_age=1,2,4")
    if len(values) > MOST:
        raise InputError(f"--sweep {key}: {len(values)} values are more than {MOST}", hint="leave some out")
    return key.strip(), values


def sweep(planner: Planner, model: Model, scenario: Scenario, key: str, values: Sequence[str],
          seeds: Sequence[int], tell: Callable[[str], None] = lambda line: None) -> Sweep:
    """Simulate every value. InputError where one cannot be planned, before the first is simulated. ``tell`` is told of
    each before it is simulated."""
    cases = [case(planner, scenario, key, value) for value in values]
    base, points = planner(()), []
    known = standings(base, model, scenario)
    for value, (plan, inside) in zip(values, cases):
        tell(f"{key} = {value}")
        points.append(replace(_point(value, plan, model, inside, seeds),
                              because=reasons(standings(plan, model, inside), known), forbidden=forbidden(plan, base)))
    return Sweep(key, tuple(points))


def quantity_of(name: str) -> Quantity:
    """The quantity of that name, words joined by anything; InputError where there is none."""
    known = {_joined(quantity): quantity for quantity in Quantity}
    if (found := known.get(_joined(name))) is not None:
        return found
    near = difflib.get_close_matches(_joined(name), known, 1)
    raise InputError(f"{name!r} is no quantity that can be scaled; there are {', '.join(known)}",
                     hint=f"did you mean {near[0]}?" if near else "")


def case(planner: Planner, scenario: Scenario, key: str, value: str) -> tuple[Plan, Scenario]:
    """What one value is simulated with; InputError where it cannot be planned."""
    try:
        if key == "seed":
            raise InputError("the seeds are the simulation's own", hint="--replicas N simulates more of them")
        if not key.startswith(_SCALE):
            return planner((f"{key}={value}",)), scenario
        quantity, factor = quantity_of(key.removeprefix(_SCALE)), factor_of(value)
        if factor is None:
            raise InputError(f"should be a factor of at least 0, got {value!r}")
        return planner(()), replace(scenario, scales={**scenario.scales, quantity: factor})
    except InputError as error:
        raise InputError(f"--sweep {key}={value}: {error.message}", hint=error.hint) from error


def _point(value: str, plan: Plan, model: Model, scenario: Scenario, seeds: Sequence[int]) -> Point:
    try:
        return Point(value, simulate(plan, model, scenario, seeds, None))
    except Interrupted:
        raise
    except GrpoBenchError as error:
        return Point(value, None, error.message)


def factor_of(text: str) -> float | None:
    """What a quantity is multiplied with; None where that is no number of at least 0."""
    try:
        factor = float(text)
    except ValueError:
        return None
    return factor if 0 <= factor < math.inf else None


def _divided(text: str) -> list[str]:
    """Split at commas that are in no quotes and no brackets."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "\"'":
            quote = sign
        else:
            depth += (sign in "[{") - (sign in "]}")
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _joined(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def _spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    return median(seconds) / 60, min(seconds) / 60, max(seconds) / 60
