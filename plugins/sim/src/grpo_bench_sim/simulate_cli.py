"""``grpo-bench simulate``: say how long a profile's run takes, where the time goes and what would change it.

The run goes through the same engine under a virtual clock, with parts that answer after modelled times. It needs
nothing of what the run itself needs, and says nothing of what the policy would learn.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from grpo_bench.cli.columns import page_width, say, wrapped
from grpo_bench.cli.options import MAX_SEED, add_layer_options, run_folder, surveyed_by
from grpo_bench.contract import GrpoBenchError, InputError, Interrupted

if TYPE_CHECKING:
    from grpo_bench.registry import Plan

    from .findings import Findings
    from .model import Model, Quantity
    from .standing import Planner, Scenario

MAX_REPLICAS = 1000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """All that is asked for, found to be possible. ``planner`` plans the profile with further overrides, ``bare`` does
    so without those of the command line; validations are ``due`` after these steps."""

    plan: Plan
    planner: Planner
    bare: Planner
    model: Model
    scenario: Scenario
    seeds: Sequence[int]
    due: Sequence[int]
    what_if: bool
    sweep: tuple[str, tuple[str, ...]] | None
    held_out: bool
    out: Path


def fill(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench simulate`` its arguments."""
    parser.description = (__doc__ or "").replace("``", "")
    parser.add_argument("--profile", required=True, metavar="NAME", help="which profile; see 'profiles list'")
    parser.add_argument("--replicas", type=_number(1, MAX_REPLICAS), default=3, metavar="N", help="runs (default: 3)")
    parser.add_argument("--seed", type=_number(0, MAX_SEED), metavar="N",
                        help="seed of the first replica, one more for each later one (default: the profile's)")
    parser.add_argument("--division", metavar="NAME", help="short for --set ruleset.division=NAME")
    add_layer_options(parser)
    parser.add_argument("--calibrate", type=run_folder, metavar="RUN", help="take the times of this run")
    parser.add_argument("--model", type=run_folder, metavar="FILE",
                        help="take the times of this file (default: the packaged model of the profile's policy)")
    parser.add_argument("--passes-at", type=_number(0, 2**31 - 1), metavar="STEP",
                        help="step whose weights are taken to meet the target (default: as in the model's logs)")
    parser.add_argument("--scale", action="append", default=[], metavar="QUANTITY=FACTOR",
                        help="multiply what a quantity takes, as in update=0.5; may be repeated")
    parser.add_argument("--what-if", action="store_true", help="simulate variants of the profile as well")
    parser.add_argument("--sweep", action="append", default=[], metavar="KEY=A,B,C",
                        help="simulate one setting, or scale.QUANTITY, over several values as well")
    parser.add_argument("--held-out", action="store_true",
                        help="compare with logs that the model was not made of as well, under their own conditions")
    parser.add_argument("--out", type=Path, metavar="DIR",
                        help="new or empty folder for what is written (default: simulations/TIME-PROFILE)")
    parser.add_argument("--json", action="store_true", help="print all of it as one JSON object")
    parser.set_defaults(verb=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    from .findings import begin, write
    order = _order(arguments)
    order = replace(order, out=begin(order.model, order.out, numbered=arguments.out is None))
    progress = not arguments.json or sys.stderr.isatty()
    try:
        found = _carried_out(order, _tell if progress else lambda line: None)
        record = write(found, order.out)
    except Interrupted as error:
        raise KeyboardInterrupt from error
    if arguments.json:
        print(json.dumps(record, allow_nan=False))
    else:
        _show(found, order.out)
    for line in found.failed:
        _tell(f"grpo-bench: {line}")
    return 1 if found.failed else 0


def _order(arguments: argparse.Namespace) -> Order:
    """InputError where something of it cannot be; nothing is written yet."""
    from grpo_bench.engine import due_steps

    from .held_out import check
    from .standing import Scenario, stood_in
    from .sweep import case, parse
    if arguments.calibrate is not None and arguments.model is not None:
        raise InputError("--calibrate and --model both say how long parts take", hint="leave one of them out")
    if len(arguments.sweep) > 1:
        raise InputError(f"--sweep {arguments.sweep[1]}: one setting at a time", hint="leave the others out")
    scales, sweep = _scales(arguments.scale), parse(arguments.sweep[0]) if arguments.sweep else None
    out = _place(arguments)
    plan = _planner(arguments, arguments.seed)(())
    planner, bare = _planner(arguments, plan.seed), _planner(_bare(arguments), plan.seed)
    due, seeds = due_steps(plan), _seeds(plan.seed, arguments.replicas)
    _check_passing(arguments.passes_at, plan, due)
    model, scenario = _model(arguments, plan), Scenario(arguments.passes_at, scales)
    stood_in(plan, model, scenario)
    if arguments.held_out:
        check(bare, model)
    key, values = sweep or ("", ())
    _check_scales(model, [(plan, scenario), *(case(planner, scenario, key, value) for value in values)])
    return Order(plan, planner, bare, model, scenario, seeds, due, arguments.what_if, sweep, arguments.held_out, out)


def _planner(arguments: argparse.Namespace, seed: int | None) -> Planner:
    @cache
    def planned(overrides: tuple[str, ...]) -> Plan:
        return surveyed_by(argparse.Namespace(**{
            **vars(arguments), "overrides": [*arguments.overrides, *overrides], "seed": seed, "replica": None}))[1]

    return lambda overrides: planned(tuple(overrides))


def _bare(arguments: argparse.Namespace) -> argparse.Namespace:
    """The same profile as it is written."""
    return argparse.Namespace(**{**vars(arguments), "overrides": [], "division": None})


def _model(arguments: argparse.Namespace, plan: Plan) -> Model:
    if arguments.calibrate is not None:
        from .calibrate import calibrated_on
        return calibrated_on(arguments.calibrate)
    if arguments.model is not None:
        from .model import read_model
        try:
            return read_model(arguments.model)
        except InputError as error:
            raise InputError(error.message, hint=_instead_of(arguments.model)) from error
    from .choosing import model_for
    return model_for(plan)


def _instead_of(file: Path) -> str:
    """What may be meant by a file that is no model."""
    from .findings import MODEL
    if (file / MODEL).is_file():
        return f"the simulation in it keeps its model: --model {file / MODEL}"
    return f"each simulation keeps its model as {MODEL} in its folder; --calibrate RUN takes the times of a run"


def _scales(given: Sequence[str]) -> Mapping[Quantity, float]:
    from .sweep import factor_of, quantity_of
    scales: dict[Quantity, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            quantity = quantity_of(name)
        except InputError as error:
            raise InputError(f"--scale {text}: {error.message}", hint=error.hint) from error
        factor = factor_of(number)
        if factor is None:
            raise InputError(f"--scale {text}: should have the form QUANTITY=FACTOR, the factor at least 0, as in "
                             "update=0.5")
        if quantity in scales:
            raise InputError(f"--scale {text}: {quantity} is scaled by {scales[quantity]:g} already",
                             hint="leave one of them out")
        scales[quantity] = factor
    return scales


def _check_scales(model: Model, cases: Sequence[tuple[Plan, Scenario]]) -> None:
    """What is scaled takes time in some of what is simulated, of which the first is the profile as it is."""
    from .statuses import standings
    known = [item.quantity for plan, scenario in cases for item in standings(plan, model, scenario)]
    idle = [quantity for _, scenario in cases for quantity in scenario.scales if quantity not in known]
    if idle:
        (plan, scenario), *_ = cases
        option = "--scale " if idle[0] in scenario.scales else "--sweep scale."
        raise InputError(f"{option}{idle[0]}: by model {model.name!r} it takes no time in profile {plan.name!r}",
                         hint=f"what does: {', '.join(dict.fromkeys(known))}")


def _seeds(first: int, count: int) -> range:
    if first + count - 1 > MAX_SEED:
        raise InputError(f"--replicas {count}: the seed of the last, {first} + {count - 1}, would be above {MAX_SEED}, "
                         "the highest", hint="give a lower --seed")
    return range(first, first + count)


def _check_passing(step: int | None, plan: Plan, due: Sequence[int]) -> None:
    if step is None:
        return
    if plan.profile.validation.target is None:
        raise InputError(f"--passes-at {step}: profile {plan.name!r} has no target that weights could meet",
                         hint="leave out --passes-at, or set validation.metric and validation.target")
    if step in due:
        return
    some = [*map(str, due)] if len(due) <= 6 else [*map(str, due[:4]), "...", str(due[-1])]
    raise InputError(f"--passes-at {step}: no validation is due after this step of profile {plan.name!r}",
                     hint=f"steps after which one is due: {', '.join(some) or 'none'}")


def _place(arguments: argparse.Namespace) -> Path:
    """Where everything goes, if nobody else takes it meanwhile."""
    now = datetime.now(UTC)
    out: Path = arguments.out or Path("simulations") / f"{now:%Y%m%d-%H%M%S}-{arguments.profile}"
    above = next((place for place in (out, *out.absolute().parents) if os.path.lexists(place)), Path.cwd())
    if not above.is_dir():
        raise InputError(f"--out {out}: {above} is no folder", hint="name a new folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {above} may not be written", hint="name another place")
    if arguments.out is not None and above == out and any(out.iterdir()):
        raise InputError(f"--out {out}: there is something in it", hint="name a new folder")
    return out


def _carried_out(order: Order, tell: Callable[[str], None]) -> Findings:
    from .account import account
    from .evaluating import evaluation
    from .findings import Findings
    from .held_out import held_out
    from .reading import RunTimes
    from .simulation import simulate
    from .statuses import standings
    from .sweep import sweep
    from .what_if import what_if
    plan, model, scenario, seeds = order.plan, order.model, order.scenario, order.seeds
    done: list[RunTimes] = []
    failed: list[str] = []

    def told(run: RunTimes) -> None:
        done.append(run)
        tell(f"replica {len(done)} of {len(seeds)}: seed {seeds[len(done) - 1]}, {len(run.steps)} steps, "
             f"{run.wall / 60:,.1f} min of the run's time")

    found = simulate(plan, model, scenario, seeds, order.out, told=told)
    if order.due and plan.profile.validation.deferred:
        tell("the evaluation of its weights")
    after = _unless_failed("the evaluation of its weights", lambda: evaluation(found, order.due, seeds), failed)
    stands = standings(plan, model, scenario)
    counted = account(found, after, stands, failed=bool(failed))
    changes = what_if(order.planner, found, seeds[:1], tell) if order.what_if else []
    swept = sweep(order.planner, model, scenario, *order.sweep, seeds, tell) if order.sweep is not None else None
    compared = None
    if order.held_out:
        tell("the conditions of what was held out")
        compared = _unless_failed("--held-out", lambda: held_out(order.bare, model, seeds), failed)
    return Findings(found, seeds, counted, stands, changes, swept, compared or [], failed)


def _unless_failed(what: str, make: Callable[[], T], failed: list[str]) -> T | None:
    """What is made; None where a simulated run of it fails, and why is added to what ``failed``."""
    try:
        return make()
    except (InputError, Interrupted):
        raise
    except GrpoBenchError as error:
        failed.append(f"{what}: {error.message}" + (f" ({error.hint})" if error.hint else ""))
        return None


def _show(found: Findings, out: Path) -> None:
    from . import telling
    room = page_width()
    for number, section in enumerate(telling.sections(found)):
        lines = [part for line in section for part in wrapped(_printable(line), room, telling.INDENT)]
        say(*([""] if number else []), *lines)
    say("", f"page    {out / 'simulation.html'}", f"runs    {found.simulation.folders[0].parent}")


def _printable(line: str) -> str:
    """What a model's file says reaches no terminal as a command."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _number(least: int, most: int) -> Callable[[str], int]:
    """What reads a number from the command line."""
    def parsed(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"should be an integer from {least} to {most}, got {text!r:.40}")
        return int(text)
    return parsed
