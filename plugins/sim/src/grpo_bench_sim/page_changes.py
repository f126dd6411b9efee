"""The page's sections of what-ifs and of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from grpo_bench.observers.kit import Cell, name, swatch, table

from . import figures
from .sweep import Point, Sweep
from .units import Unit
from .what_if import Change


def what_if(changes: Sequence[Change], unit: Unit) -> list[str]:
    """The table of variants."""
    if not changes:
        return []
    most = max((abs(change.minutes) for change in changes if change.minutes is not None), default=0.0)
    head = ("what if", Cell("", "bar"), Cell("change", "n"), Cell("to target", "n"), Cell("training ends", "n beside"),
            Cell("phases that move most", "beside"))
    told = "".join(f"<dt>{escape(change.variant.name)}</dt>{about}" for change in changes if (about := _about(change)))
    return ['<h2 id="what-if">What if</h2>',
            f'<p class="note">{unit.word.capitalize()}, each against the run as it is under the same seed. All are '
            "taken to meet the target at the same step: whether they would is not predicted. An evaluation that is "
            "deferred comes after the training ends.</p>",
            table(head, [_row(change, most, unit) for change in changes], numeric_from=6),
            '<ul class="legend"><li><span class="swatch saved"></span>shorter</li>'
            '<li><span class="swatch added"></span>longer</li></ul>',
            f'<dl class="about">{told}</dl>' if told else ""]


def swept(sweep: Sweep | None, unit: Unit) -> list[str]:
    if sweep is None or not sweep.points:
        return []
    several = any(point.simulation is not None and len(point.simulation.runs) > 1 for point in sweep.points)
    band = " The band is from the least to the most of the replicas." if several else ""
    drawn = any(point.simulation is not None for point in sweep.points)
    phases = [phase for phase in dict.fromkeys(phase for point in sweep.points for phase in point.phases)
              if max(point.phases.get(phase, 0.0) for point in sweep.points) >= unit.least]
    rows = [(_value(point), *_figures(point, phases, unit)) for point in sweep.points]
    head = (Cell(broken(sweep.key), "key"), Cell("to target", "n"), Cell("training ends", "n"),
            *(Cell(swatch(phase) + escape(name(phase)), "n") for phase in phases))
    told = "".join(f"<dt>{escape(point.value)}</dt>{about}" for point in sweep.points if (about := _why(point)))
    failed = "".join(f'<p class="error">{escape(sweep.key)} = {escape(point.value)}: {escape(point.failed)}</p>'
                     for point in sweep.points if point.failed)
    return [f'<h2 id="sweep">Sweep of {escape(sweep.key)}</h2>', f'<p class="note">Medians, in {unit.word}.{band}</p>',
            figures.sweep_svg(sweep, unit) if drawn else "", table(head, rows, numeric_from=len(head)), failed,
            f'<dl class="about">{told}</dl>' if told else ""]


def broken(key: str) -> str:
    """A dotted key that may go on in the next line after each of its words."""
    return escape(key).replace(".", ".<wbr>").replace("_", "_<wbr>")


def _value(point: Point) -> Cell:
    return Cell(broken(point.value) + _barred(point.forbidden)
                + ("<small>extrapolated</small>" if point.because else ""), "key")


def _barred(forbidden: Sequence[str]) -> str:
    return '<small class="bad">not allowed by the rules</small>' if forbidden else ""


def _figures(point: Point, phases: Sequence[str], unit: Unit) -> list[Cell]:
    spread, whole = point.to_target, point.whole
    return [Cell(unit.shown(spread[0]) if spread else "–", "n"), Cell(unit.shown(whole[0]) if whole else "–", "n"),
            *(Cell(unit.shown(point.phases[phase]) if phase in point.phases else "–", "n") for phase in phases)]


def _row(change: Change, most: float, unit: Unit) -> tuple[Cell, ...]:
    if change.minutes is None:
        return (Cell(_named(change), "variant"), Cell("", "bar"),
                *(Cell("–", style) for style in ("n", "n", "n beside", "beside")))
    moves = _moves(change, unit)
    to_target, whole = ("–" if minutes is None else unit.shown(minutes) for minutes in (change.to_target, change.whole))
    beneath = f'<small class="beneath">{moves}</small>' if moves else ""
    return (Cell(_named(change) + beneath, "variant"), Cell(_bar(change.minutes, most, unit), "bar"),
            Cell(_signed(change.minutes, unit), "n"), Cell(to_target, "n"), Cell(whole, "n beside"),
            Cell(moves, "beside"))


def _bar(minutes: float, most: float, unit: Unit) -> str:
    return figures.change_svg(minutes, most, unit) if abs(minutes) >= unit.least else ""


def _named(change: Change) -> str:
    """The variant's name, and beneath it how it stands."""
    stands = "not simulated" if change.refused else ", ".join(
        word for word, holds in (("no such plan", change.note), ("extrapolated", change.because)) if holds)
    return escape(change.variant.name) + _barred(change.forbidden) + (f"<small>{stands}</small>" if stands else "")


def _about(change: Change) -> str:
    """What there is to know of it, each a paragraph."""
    before = [("not simulated: ", change.refused), ("", change.note)]
    return "".join(f"<dd>{escape(word + text)}</dd>" for word, text in before if text) + _why(change)


def _why(found: Change | Point) -> str:
    """What the rules have against it, and what makes it an extrapolation."""
    told = [("the rules do not allow it: ", found.forbidden), ("extrapolated: ", found.because)]
    return "".join(f"<dd>{escape(word + '; '.join(texts))}</dd>" for word, texts in told if texts)


def _moves(change: Change, unit: Unit) -> str:
    """The phase that moves most, and the next one where it moves half as much."""
    most = [item for item in change.phases[:2] if abs(item[1]) >= abs(change.phase_minutes) / 2]
    late = " after the target" if change.late and change.to_target is not None else ""
    return "<br>".join(f"{swatch(phase)}{escape(name(phase))} {_signed(minutes, unit)}{late}"
                       for phase, minutes in most)


def _signed(minutes: float, unit: Unit) -> str:
    if abs(minutes) < unit.least:
        return "0"
    return f"{'+' if minutes > 0 else '−'}{unit.shown(abs(minutes))}"
