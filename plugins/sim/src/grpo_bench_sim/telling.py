"""A simulation as text: how long, where the time goes, what is known of that, and the tables of what was compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median

from grpo_bench.observers.kit import counted, name
from grpo_bench.registry.estimate import Duration, fit

from .account import Account, Deciles, Spread, quantiles, spread
from .evaluating import Evaluation
from .figures import Compared
from .findings import PAGE, RECORD, Findings
from .simulation import Simulation, seeds_named
from .statuses import WORST, Standing
from .sweep import Sweep
from .units import Unit, unit_of
from .what_if import Change, forbidden

INDENT = 8
"""Of the second and later lines of what is too long for one."""
_AFTER = "evaluation after it"
_BROKEN = 3
"""Rules that are said in words; of more, how many there are."""
_NOTES = 8
"""Lines of what is known; the rest is in ``--json`` and on the page."""


def sections(found: Findings) -> Iterator[list[str]]:
    """All of it, as lines however long."""
    simulation, unit = found.simulation, unit_of(found.simulation.runs)
    yield list(heading(simulation, found.seeds))
    yield [*how_long(found.account, simulation, partial(_fit, found.given_s)), *_taken(found)]
    yield where(found.account, simulation)
    yield notes(found.standings)
    yield from filter(None, (changes(found.changes, unit), points(found.sweep, unit), comparison(found.compared)))


def _fit(given_s: float, needed: Spread) -> str:
    """How it fits the time that such runs are given; empty where nobody says."""
    return f"{fit(Duration(needed.least, needed.most), given_s)} the {given_s / 60:g} min given" if given_s else ""


def _taken(found: Findings) -> Iterator[str]:
    """What the length rests on besides the model."""
    plan = found.simulation.plan
    if found.simulation.counts is None and plan.profile.validation.target is not None:
        yield "that the target is met is not assumed: no validation is due from the assumed step on"
    if found.account.target is not None:
        yield "that the target is met there is assumed, never predicted; --passes-at STEP assumes another step"
    if found.account.evaluation is not None:
        tasks, own = plan.profile.validation.max_tasks or "all", found.simulation.model.evaluation
        yield (f"a validation of {tasks} tasks x {plan.profile.validation.k} is simulated by itself, and " + (
            "weights are read as fast as written" if own is None else "the rest is as in the model's own evaluation"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], left: frozenset[int] = frozenset({0})) -> list[str]:
    """Lines of aligned columns, two blanks apart; those ``left`` begin at the left, figures end at the right."""
    widths = [max(map(len, cells)) for cells in zip(head, *rows)]
    return ["  ".join(cell.ljust(width) if index in left else cell.rjust(width)
                      for index, (cell, width) in enumerate(zip(cells, widths))).rstrip() for cells in (head, *rows)]


def heading(simulation: Simulation, seeds: Sequence[int]) -> Iterator[str]:
    """What was simulated, from which model, and what was taken as given; each a line, however long."""
    plan, model = simulation.plan, simulation.model
    source = plan.source("seed")
    drawn = plan.profile.seed == "random" and not (source and source.origin.layer == "--seed")
    yield (f"{plan.name}: {counted(len(seeds), 'replica')} simulated, {seeds_named(seeds)}"
           f"{' (drawn)' if drawn else ''}; nothing but times")
    yield f"model   {model.name}, {model.date}: {model.source}"
    if plan.missing:
        yield (f"given   {counted(len(plan.missing), 'thing')} that this machine lacks; "
               f"grpo-bench plan --profile {plan.name} lists them")
    if broken := forbidden(plan):
        division = plan.resolved["ruleset"].get("division")
        more = len(broken) - _BROKEN
        said = "; ".join([*broken[:_BROKEN], *([f"and {more} more"] if more > 0 else [])])
        yield (f"rules   {f'of the {division} division: ' if division else ''}{len(broken)} "
               f"{'does' if len(broken) == 1 else 'do'} not hold: {said}")


def how_long(found: Account, simulation: Simulation, given: Callable[[Spread], str]) -> list[str]:
    """The table of the run's length. ``given`` says how a time fits that which such runs are given."""
    unit, counts = unit_of(simulation.runs), simulation.counts
    ends = "training ends" if simulation.plan.profile.validation.deferred else "run ends"
    rows: list[tuple[str, Spread, str]] = [("start-up", found.startup, "")]
    if found.target is not None:
        rows.append(("time to target", found.target,
                     f"after start-up; step {counts} is assumed to meet it"))
    rows.append((ends, found.ended, given(found.ended)))
    if (after := found.evaluation) is not None and found.whole is not None:
        rows += [(_AFTER, spread(after.whole), _evaluation(after, unit)),
                 ("all of it", found.whole, given(found.whole))]
    cells = [(label, *(_column(value, unit) for value in (needed.median, needed.least, needed.most)), words)
             for label, needed, words in rows]
    if found.whole is None:
        cells.append((_AFTER, "", "", "", "fails"))
    return table((f"how long, {unit.name}", "median", "least", "most", ""), cells, frozenset({0, 4}))


def _evaluation(after: Evaluation, unit: Unit) -> str:
    each, read = (_column(median(values), unit) for values in (after.validation, after.reading))
    return f"start and end + {after.weights} of {after.saved} weights x ({read} to read + {each})"


def where(found: Account, simulation: Simulation) -> list[str]:
    """The ledger by phase, and what the trainer waits."""
    unit = unit_of(simulation.runs)
    rows = [(name(item.phase), _column(item.counted, unit) if item.counted else "", _column(item.seconds, unit),
             f"{item.share:.0%}", *_quantiles(item.each), item.standing or "")
            for item in found.phases if item.share >= 0.0005]
    rows.append(("a step", "", "", "", *_quantiles(found.step), ""))
    reached = "to target" if found.target else ""
    head = ("where it goes", reached, unit.name, "share", "step, s", "q10", "q90", "standing")
    gpus = simulation.plan.needs["trainer"]
    who = f"the trainer's {gpus.workers * gpus.gpus} GPUs wait" if gpus.workers * gpus.gpus else "the trainer waits"
    return [*table(head, rows, frozenset({0, 7})),
            f"{who} for rollouts {found.waits:.0%} of the time after start-up (rollout + drain)",
            "step: median and quantiles from the second on; of a validation or a checkpoint: each of them"]


def _quantiles(found: Deciles | None) -> tuple[str, str, str]:
    if found is None:
        return "", "", ""
    return _figure(found.median), _figure(found.q10), _figure(found.q90)


def _figure(value: float) -> str:
    """With three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def notes(standings: Sequence[Standing]) -> list[str]:
    """What is known of each quantity, the least known first; a line for each reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for item in sorted(standings, key=lambda item: WORST.index(item.kind)):
        rests = f"; rests on {counted(len(item.inside), 'assumption')} of the model" if item.inside else ""
        reasons.setdefault((item.kind, item.why + rests), []).append(item.quantity.value)
    lines = [f"{kind:<12}  {', '.join(quantities)}" + (f": {why}" if why else "")
             for (kind, why), quantities in reasons.items()]
    if len(lines) <= _NOTES:
        return lines
    return [*lines[:_NOTES - 1], f"{len(lines) - _NOTES + 1} more in {RECORD}"]


def changes(found: Sequence[Change], unit: Unit) -> list[str]:
    """The table of what-ifs; empty of none."""
    if not found:
        return []
    rows, said = [], []
    for change in found:
        if change.minutes is None or change.whole is None or change.whole_minutes is None:
            rows.append((change.variant.name, "", "", "", "", "not simulated"))
            said.append(f"{change.variant.name}: {change.refused}")
            continue
        moved = f"{name(change.phase)} {_signed(change.phase_minutes, unit)}" if change.phase else ""
        mark = " *" if change.because else ""
        rows.append((f"{change.variant.name}{mark}", *_to_target(change, unit), unit.shown(change.whole),
                     _signed(change.whole_minutes, unit), moved))
        if change.note:
            said.append(f"{change.variant.name}: no plan can be made of it; {PAGE} says why")
        if change.forbidden:
            said.append(f"{change.variant.name}: the rules do not allow it")
    if any(change.because for change in found):
        said.append(f"* extrapolated from what was measured; {PAGE} says why")
    head = (f"what if, {unit.name}", "to target", "change", "training ends", "change", "what moves")
    return [*table(head, rows, frozenset({0, 5})), *said]


def _to_target(change: Change, unit: Unit) -> tuple[str, str]:
    """That time and its difference, where there is one."""
    if change.to_target is None or change.minutes is None:
        return "", ""
    return unit.shown(change.to_target), _signed(change.minutes, unit)


def points(found: Sweep | None, unit: Unit) -> list[str]:
    """The table of a sweep: times as median, least and most, and the phase that most of them goes to."""
    if found is None:
        return []
    rows = []
    for point in found.points:
        spread = point.to_target or point.whole
        most = max(point.phases.items(), key=lambda item: item[1], default=("", 0.0))
        rows.append((point.value, *(map(unit.shown, spread) if spread else ("", "", "")),
                     f"{name(most[0])} {unit.shown(most[1])}" if spread else point.failed,
                     ", ".join(reason.partition(":")[0] for reason in point.because)))
    timed = "to target" if all(point.to_target for point in found.points if point.simulation) else "run"
    head = (found.key, f"{timed}, {unit.name}", "least", "most", "most of it", "extrapolated")
    said = [f"{found.key} = {point.value}: the rules do not allow it" for point in found.points if point.forbidden]
    return [*table(head, rows, frozenset({0, 4, 5})), *said]


def comparison(found: Sequence[Compared]) -> list[str]:
    """The table of what was measured and not fitted, against simulations of the same conditions; empty of nothing."""
    if not found:
        return []
    rows = [(item.name, item.unit, str(item.batch), _range(item.measured), _range(item.simulated),
             f"{item.deviation:+.1%}", _judged(item)) for item in found]
    bound = next((f"within {item.bound:.0%}" for item in found if item.bound is not None), "")
    head = ("held out", "", "batch", "measured (q10 to q90)", "simulated (q10 to q90)", "off by", bound)
    return table(head, rows, frozenset({0, 1, 6}))


def _judged(item: Compared) -> str:
    return "" if item.bound is None else "yes" if abs(item.deviation) <= item.bound else "NO"


def _range(values: Sequence[float]) -> str:
    middle, low, high = _quantiles(quantiles(values))
    return f"{middle} ({low} to {high})"


def _column(seconds: float, unit: Unit) -> str:
    """With as many digits as all of its column."""
    return f"{unit.of(seconds / 60):,.{unit.digits}f}"


def _signed(minutes: float, unit: Unit) -> str:
    text = unit.shown(abs(minutes))
    return text if abs(minutes) < unit.least else f"{'+' if minutes > 0 else '-'}{text}"
