"""How far simulations are from logs that their model has not seen: the logs' own conditions, simulated and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grpo_bench.contract import InputError, Phase

from .figures import Compared
from .model import Figure, Measured, Model
from .reading import RunTimes
from .simulation import simulate
from .standing import Planner, Scenario

BOUND = 0.10
"""Share by which the simulated median may be off."""
_SEEDS = 2**32
LEAST = 6
"""Replicas of each batch: half of the steps stall, so the median of fewer is decided by chance."""


def _of_steps(phase: str | None) -> Callable[[RunTimes], list[float]]:
    """What steps from the second on take, all of it or one phase."""
    return lambda run: [step.wall if phase is None else step.phases.get(phase, 0.0) for step in run.steps[1:]]


_COMPARED: Mapping[Figure, tuple[str, str, float | None, Callable[[RunTimes], list[float]]]] = {
    "step": ("step", "s", BOUND, _of_steps(None)),
    "rollout": ("exposed generation", "s", BOUND, lambda run: [step.exposed for step in run.steps[1:]]),
    "refit": ("weight sync", "s", BOUND, _of_steps(Phase.REFIT.value)),
    "run_minutes": ("run", "min", BOUND, lambda run: [] if run.score is None else [run.score / 60]),
    "update": ("update", "s", None, _of_steps(Phase.UPDATE.value)),
    "rest": ("rest of a step", "s", None, _of_steps(Phase.LOG_PROBABILITIES.value)),
    "first_step": ("first step", "s", None, lambda run: [run.first] if run.steps else []),
    "validation": ("validation", "s", None, lambda run: [seconds for _, seconds in run.validations]),
}
"""By name in the model: what it is called, its unit, the bound it has to keep, and a run's values of it. Logs do not
divide the rest of a step; a simulation has its log-probabilities and its driver's work there."""


def check(planner: Planner, model: Model) -> None:
    """InputError where there is nothing to compare with, or no plan can be made of the logs' conditions."""
    if not any(found.held_out for found in model.measured):
        raise InputError(f"--held-out: model {model.name!r} keeps no logs that it was not made of",
                         hint="leave out --held-out, or name a model that does")
    for found in model.measured:
        if found.held_out and str(found.batch) not in model.conditions:
            raise InputError(f"--held-out: model {model.name!r} does not say what its logs of batch {found.batch} ran "
                             "under", hint="see conditions in the model's file")
        if found.held_out:
            try:
                planner(model.conditions[str(found.batch)])
            except InputError as error:
                raise InputError(f"--held-out: the conditions of batch {found.batch} in model {model.name!r}: "
                                 f"{error.message}", hint=error.hint) from error


def held_out(planner: Planner, model: Model, seeds: Sequence[int]) -> list[Compared]:
    """Every quantity of every batch that the model has held out, against simulations under the same conditions: under
    ``seeds``, and those that follow the first where these are too few."""
    chosen = seeds if len(seeds) >= LEAST else [(seeds[0] + number) % _SEEDS for number in range(LEAST)]
    return [compared for found in model.measured if found.held_out
            for compared in _batch(planner, model, found, chosen)]


def _batch(planner: Planner, model: Model, found: Measured, seeds: Sequence[int]) -> list[Compared]:
    runs = simulate(planner(model.conditions[str(found.batch)]), model, Scenario(), seeds, None).runs
    simulated = {key: tuple(sorted(value for run in runs for value in values(run)))
                 for key, (*_, values) in _COMPARED.items()}
    return [Compared(found.batch, name, unit, tuple(found.values[key]), simulated[key], bound)
            for key, (name, unit, bound, _) in _COMPARED.items() if found.values.get(key) and simulated[key]]
