"""The pictures of a simulation, each drawn for a given frame in the report's manner: inline SVG whose colours and fonts
come from the page's style sheet, with all it says in its title for those who cannot see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from statistics import median

from grpo_bench.observers.kit import Frame, axes, counted, drawing, line, name, path, scale, tag, text, ticks

from .reading import WAITING, RunTimes
from .sweep import Sweep
from .units import Unit, shown

WAITS: Mapping[str, str] = dict(zip(
    WAITING, ("waiting for rollouts", "waiting for rollouts before a refit"), strict=True))
"""Phases of a step in which the trainer waits, by what they are called beside the picture of the steps. Together they
are the exposed generation."""
_CLASSES = ("wide", "middle", "narrow")
_WIDTHS = (1080, 720, 360)
_BAR = 26
_ROW = 58
MOST_STEPS = 120
"""Steps that are drawn, the first ones: more are too thin to be told apart."""
_LABEL = 125
"""Pixels that the words beside the line of the target take."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One quantity of one batch as it was measured and as it was simulated under the same conditions. ``bound`` is the
    share by which the medians may differ; None: it is only shown."""

    batch: int
    name: str
    unit: str
    measured: tuple[float, ...]
    simulated: tuple[float, ...]
    bound: float | None = None

    @property
    def measured_median(self) -> float:
        return median(self.measured)

    @property
    def simulated_median(self) -> float:
        return median(self.simulated)

    @property
    def deviation(self) -> float:
        """Of the simulated median from the measured one, as a share of it."""
        off = self.simulated_median - self.measured_median
        return off / self.measured_median if off else 0.0


def figure(draw: Callable[[Frame, str], str], height: int, widths: Sequence[int] = _WIDTHS, **margins: int) -> str:
    """The same picture for three widths, of which the style sheet shows one."""
    return "<figure>" + "".join(draw(Frame(width, height, **margins), class_)
                                for width, class_ in zip(widths, _CLASSES)) + "</figure>"


def ledger_svg(bars: Sequence[tuple[str, Mapping[str, float]]], unit: Unit) -> str:
    """Time by phase: a stacked bar for each (label, phase -> minutes), all on one scale."""
    return figure(partial(_ledger, bars, unit), len(bars) * _ROW + 44, left=0, right=14, top=4, bottom=40)


def steps_svg(runs: Sequence[RunTimes], counts: int | None) -> str:
    """Seconds of each step: the median replica's waits and work as bars, every replica's whole step as a dot."""
    return figure(partial(_steps, runs, counts), 290, left=52, top=28)


def sweep_svg(sweep: Sweep, unit: Unit) -> str:
    """Time over the values of a sweep: medians, and a band from least to most."""
    return figure(partial(_sweep, sweep, unit), 300, left=52, right=30, top=28)


def distributions_svg(compared: Compared) -> str:
    """Two empirical distributions: the share of values up to each."""
    return figure(partial(_distributions, compared), 230, (524, 720, 360), left=46, right=24, top=14)


def change_svg(minutes: float, most: float, unit: Unit) -> str:
    """A bar to the left of the middle for time saved, to the right for time added; ``most`` fills a side."""
    reach = min(1.0, abs(minutes) / most) * 76 if most else 0.0
    left, class_ = (80 - reach, "saved") if minutes < 0 else (80.0, "added")
    bar = tag("rect", x=left, y=3.0, width=max(reach, 1.0), height=12.0, class_=class_)
    return (f'<svg class="change" viewBox="0 0 160 18" role="img" aria-label="{unit.of(minutes):+.2f} {unit.word}">'
            f'{line(80, 0, 80, 18, "axis")}{bar}</svg>')


def waited(phases: Mapping[str, float]) -> dict[str, float]:
    """The phases of a step, all but the waits as one."""
    return {**{phase: phases.get(phase, 0.0) for phase in WAITS},
            "rest": sum(spent for phase, spent in phases.items() if phase not in WAITS)}


def _ledger(bars: Sequence[tuple[str, Mapping[str, float]]], unit: Unit, frame: Frame, class_: str) -> str:
    bars = [(label, {phase: unit.of(minutes) for phase, minutes in phases.items()}) for label, phases in bars]
    most = max((sum(phases.values()) for _, phases in bars), default=1.0) or 1.0
    x = scale((0.0, most), frame.x)
    parts = [axes(frame, [(x(t), f"{t:g}") for t in ticks(0.0, most, max(3, frame.width // 120))], [], unit.word, "")]
    told = []
    for row, (label, phases) in enumerate(bars):
        top, base, total = frame.top + row * _ROW, 0.0, sum(phases.values())
        parts.append(text(0, top + 14, f"{label}: {shown(total)} {unit.name}", "label"))
        for phase, spent in phases.items():
            said = f"{name(phase)} {shown(spent)} {unit.name}, {spent / total:.1%}" if total else name(phase)
            parts.append(tag("rect", _title(said), x=x(base), y=float(top + 22), height=float(_BAR),
                             width=x(base + spent) - x(base), class_=f"p-{phase}"))
            base += spent
        told.append(f"{label} {shown(total)} {unit.name}: " + ", ".join(
            f"{name(phase)} {shown(spent)}" for phase, spent in phases.items() if spent >= 0.005))
    return drawing(frame, f"{unit.word.capitalize()} by phase. {'; '.join(told)}", "".join(parts), class_)


def _steps(runs: Sequence[RunTimes], counts: int | None, frame: Frame, class_: str) -> str:
    there = sorted({step.step for run in runs for step in run.steps})
    steps = there[:MOST_STEPS]
    of_step = {number: [step for run in runs for step in run.steps if step.step == number] for number in steps}
    most = max((step.wall for found in of_step.values() for step in found), default=1.0) or 1.0
    y = scale((0.0, most * 1.04), frame.y)
    width = (frame.x[1] - frame.x[0]) / max(1, len(steps))
    bar, every = min(width * 0.8, 60.0), max(1, -(-len(steps) * 30 // int(frame.x[1] - frame.x[0])))
    place = {number: frame.x[0] + (index + 0.5) * width for index, number in enumerate(steps)}
    parts = [axes(frame, [(place[number], str(number)) for number in steps[::every]],
                  [(y(t), f"{t:g}") for t in ticks(0.0, most, 5)], "step", "seconds")]
    for number, found in of_step.items():
        middle = sorted(found, key=lambda step: step.wall)[(len(found) - 1) // 2]
        parts.append(_step_bar(number, waited(middle.phases), place[number], bar, y))
        parts += [tag("circle", cx=place[number], cy=y(step.wall), r=2.4, class_="replica") for step in found]
    if counts is not None and counts in place:
        at = place[counts] + width / 2
        ends = at - frame.x[0] > _LABEL
        parts += [line(at, frame.y[1] - 10, at, frame.y[0], "target"),
                  text(at - 5 if ends else at + 5, frame.y[1] - 14, "target taken as met", "label",
                       "end" if ends else None)]
    walls = [median(step.wall for step in found) for found in of_step.values()]
    spent = [median(step.exposed for step in found) for found in of_step.values()]
    said = (f": medians from {min(walls):,.0f} to {max(walls):,.0f} s, of which exposed generation is "
            f"{min(spent):,.0f} to {max(spent):,.0f} s") if walls else ""
    which = f"the first {len(steps)} of {len(there)} steps" if len(there) > len(steps) else f"{len(steps)} steps"
    title = f"Seconds of each of {which} in {counted(len(runs), 'replica')}{said}"
    return drawing(frame, title, "".join(parts), class_)


def _step_bar(number: int, parts: Mapping[str, float], middle: float, width: float,
              y: Callable[[float], float]) -> str:
    rects, base = [], 0.0
    for phase, seconds in parts.items():
        class_ = f"p-{phase}" if phase in WAITS else "work"
        rects.append(tag("rect", x=middle - width / 2, y=y(base + seconds), width=width,
                         height=y(base) - y(base + seconds), class_=class_))
        base += seconds
    said = ", ".join(f"{WAITS.get(phase, 'work')} {seconds:,.0f} s" for phase, seconds in parts.items() if seconds)
    return tag("g", _title(f"step {number}: {base:,.0f} s ({said})") + "".join(rects))


def _sweep(sweep: Sweep, unit: Unit, frame: Frame, class_: str) -> str:
    scored = all(point.to_target is not None for point in sweep.points if point.simulation is not None)
    found = [(point, tuple(map(unit.of, spread))) for point in sweep.points
             if (spread := point.to_target if scored else point.whole) is not None]
    values = _places([point.value for point, _ in found])
    low, high = _around([value for _, spread in found for value in spread])
    x, y = scale((min(values, default=0.0), max(values, default=1.0)), frame.x), scale((low, high), frame.y)
    room = frame.width // max(1, len(found))
    marks = [(x(value), point.value if len(point.value) * 7 < room + 40 else point.value[:max(1, room // 7)] + "…")
             for value, (point, _) in zip(values, found)]
    what = f"{unit.word} to target" if scored else f"{unit.word} of the whole run"
    parts = [axes(frame, _with_room(marks), [(y(t), f"{t:g}") for t in ticks(low, high, 5)], sweep.key, what)]
    upper = [(x(value), y(spread[2])) for value, (_, spread) in zip(values, found)]
    lower = [(x(value), y(spread[1])) for value, (_, spread) in zip(values, found)]
    if len(found) > 1:
        order = sorted(range(len(found)), key=lambda index: values[index])
        parts.append(path([upper[i] for i in order] + [lower[i] for i in reversed(order)], "band", close=True))
        parts.append(path([(x(values[i]), y(found[i][1][0])) for i in order], "metric"))
    for value, (point, spread) in zip(values, found):
        parts.append(tag("circle", _title(f"{point.value}: {_told(spread, unit)}"), cx=x(value), cy=y(spread[0]), r=3.6,
                         class_="metric-dot"))
    said = "; ".join(f"{point.value}: {_told(spread, unit)}" for point, spread in found)
    return drawing(frame, f"{what.capitalize()} by {sweep.key}. {said}", "".join(parts), class_)


def _distributions(compared: Compared, frame: Frame, class_: str) -> str:
    low, high = (edge((*compared.measured, *compared.simulated)) for edge in (min, max))
    span = (high - low) or abs(high) or 1.0
    low, high = max(0.0, low - span * 0.04), high + span * 0.04
    x, y = scale((low, high), frame.x), scale((0.0, 1.0), frame.y)
    parts = [axes(frame, [(x(t), f"{t:,g}") for t in ticks(low, high, frame.width // 80)],
                  [(y(t), f"{t:.0%}") for t in (0.0, 0.5, 1.0)], f"{compared.name}, {compared.unit}", "")]
    for values, style in ((compared.measured, "measured"), (compared.simulated, "metric")):
        parts.append(path([(x(at), y(share)) for at, share in _stairs(values, low, high)], style))
        parts.append(tag("circle", cx=x(median(values)), cy=y(0.5), r=4.0, class_=f"{style}-dot"))
    title = (f"{compared.name} at batch {compared.batch}: share of values up to each, measured (median "
             f"{compared.measured_median:,.1f} {compared.unit} of {len(compared.measured)}) and simulated (median "
             f"{compared.simulated_median:,.1f} {compared.unit} of {len(compared.simulated)})")
    return drawing(frame, title, "".join(parts), class_)


def _stairs(values: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """The corners of the empirical distribution, from ``low`` to ``high``."""
    corners, share = [(low, 0.0)], 0.0
    for rank, value in enumerate(sorted(values), 1):
        corners += [(value, share), (value, rank / len(values))]
        share = rank / len(values)
    return [*corners, (high, 1.0)]


def _around(values: Sequence[float]) -> tuple[float, float]:
    """The range of an axis: from 0 where the values differ by much, else from as far below them as they differ."""
    low, high = min(values, default=0.0), max(values, default=0.0) or 1.0
    span = high - low
    return (0.0, high * 1.05) if span > high / 4 or not span else (max(0.0, low - span), high + span / 4)


def _places(values: Sequence[str]) -> list[float]:
    """Where values lie: by their size where all are numbers, else one after the other."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return [float(index) for index in range(len(values))]


def _with_room(marks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The marks that do not cover the one before."""
    kept: list[tuple[float, str]] = []
    for at, label in sorted(marks):
        if not kept or at - kept[-1][0] > 3.5 * (len(label) + len(kept[-1][1])) + 6:
            kept.append((at, label))
    return kept


def _title(said: str) -> str:
    """What is told of an element that is pointed at."""
    return tag("title", escape(said))


def _told(spread: Sequence[float], unit: Unit) -> str:
    """``spread`` is in that unit."""
    middle, least, most = spread
    return f"{shown(middle)} {unit.name}" + (f" ({shown(least)} to {shown(most)})" if least != most else "")
