"""``simulation.html``: one page that shows a simulation and what it rests on.

Like a run's report it needs nothing else: pictures are inline SVG, drawn for three widths of which the style sheet
shows one; it follows the reader's light or dark setting and uses no script. It tells times only: what the policy would
learn is never predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from statistics import median

from grpo_bench.observers.kit import Cell, document, duration, name, style, swatch, table, write_whole

from . import figures
from .figures import MOST_STEPS, Compared
from .page_changes import broken, swept, what_if
from .reading import RunTimes, scores_of
from .simulation import Simulation
from .statuses import Standing
from .sweep import Sweep
from .units import Unit, unit_of
from .what_if import Change, forbidden


def write_page(file: Path, simulation: Simulation, standings: Sequence[Standing], changes: Sequence[Change],
               sweep: Sweep | None, comparison: Sequence[Compared], failed: Sequence[str] = ()) -> Path:
    """Write the page, whole or not at all, and return its path."""
    return write_whole(file, page(simulation, standings, changes, sweep, comparison, failed))


def page(simulation: Simulation, standings: Sequence[Standing], changes: Sequence[Change], sweep: Sweep | None,
         comparison: Sequence[Compared], failed: Sequence[str] = ()) -> str:
    """The whole document. ``failed`` is what could not be simulated, each with its reason."""
    told, unit = _Told.of(simulation), unit_of(simulation.runs)
    css = style() + files(__package__ or "").joinpath("simulation.css").read_text(encoding="utf-8")
    parts = [_header(simulation, told, standings), *(f'<p class="error">{escape(text)}</p>' for text in failed),
             _figures(simulation), *_ledger(told, unit), *_steps(simulation),
             *what_if(changes, unit), *swept(sweep, unit), *_compared(comparison), *_standings(standings),
             *_model(simulation), *_assumptions(simulation),
             "<footer>Made by grpo-bench simulate. Nothing was computed but times.</footer>"]
    return document(f"{simulation.plan.name}, simulated: {told.headline}", css, parts)


@dataclass(frozen=True, slots=True)
class _Told:
    """The answer: minutes to target of all replicas, sorted, empty where one of them has none, and of the whole run;
    ``middle`` is the median replica, ``headline`` the answer in words."""

    headline: str
    minutes: tuple[float, ...]
    whole: tuple[float, ...]
    middle: RunTimes

    @classmethod
    def of(cls, simulation: Simulation) -> _Told:
        reached = tuple(sorted(score / 60 for score in scores_of(simulation.runs)))
        whole = tuple(sorted(run.wall / 60 for run in simulation.runs))
        order = sorted(simulation.runs, key=lambda run: run.score if reached and run.score is not None else run.wall)
        unit, until = unit_of(simulation.runs), " in all" if _aimless(simulation) else ", no target met"
        headline = f"{unit.shown(median(reached or whole))} {unit.word}{' to target' if reached else until}"
        return cls(headline, reached, whole, order[(len(order) - 1) // 2])


def _header(simulation: Simulation, told: _Told, standings: Sequence[Standing]) -> str:
    apart = [item.quantity.value for item in standings if item.kind != "calibrated"]
    rests = ("None of its times is calibrated for this plan." if len(apart) == len(standings) else
             f"Its times are calibrated, but for {_listed(apart)}." if apart else "All its times are calibrated.")
    replicas = f"Median of {len(simulation.runs)} replicas" if len(simulation.runs) > 1 else "One replica"
    values, unit = told.minutes or told.whole, unit_of(simulation.runs)
    around = f", from {unit.shown(values[0])} to {unit.shown(values[-1])}" if len(values) > 1 else ""
    until = ("from the end of start-up to the moment that counts" if told.minutes else
             "from the start of the process to its end")
    return (
        f"<header><p>grpo-bench · simulation of profile {escape(simulation.plan.name)} "
        f'<span class="tag">simulated</span></p><h1 class="fair">{escape(told.headline)}</h1>'
        f'<p class="lead">{replicas}{around}; {until}.</p>'
        f'<div class="unscored"><p>Not a result: no part ran, all of them answered after modelled times. '
        f"{_assumed(simulation)} "
        f"{escape(rests)}</p>{_against(simulation)}</div></header>")


def _aimless(simulation: Simulation) -> bool:
    return simulation.plan.profile.validation.target is None


def _against(simulation: Simulation) -> str:
    """What the rules have against the plan as it is."""
    said = "; ".join(forbidden(simulation.plan))
    return f"<p>The rules do not allow it: {escape(said)}</p>" if said else ""


def _assumed(simulation: Simulation) -> str:
    if _aimless(simulation):
        return "The profile has no target, so all of its steps are simulated."
    if simulation.counts is None:
        return "That weights meet the target is not assumed: no validation is due that could find it."
    return f"Step {simulation.counts} is taken to be the first whose weights meet the target; that is an assumption."


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _figures(simulation: Simulation) -> str:
    runs, grpo = simulation.runs, simulation.plan.profile.grpo
    walls = median(run.wall for run in runs)
    waits = [step.exposed for run in runs for step in run.steps[1:]]
    shown_ = [
        ("training ends after", duration(walls), ""), ("start-up", duration(median(run.start for run in runs)), ""),
        ("median step", duration(median(run.median() for run in runs)), " from the second on"),
        ("exposed generation", duration(median(waits) if waits else None), " median of a step"),
        ("steps", str(max(len(run.steps) for run in runs)), f" of at most {grpo.max_steps}"),
        ("rollouts of a step", f"{grpo.prompts_per_step * grpo.generations_per_prompt:,}",
         f" {grpo.prompts_per_step} × {grpo.generations_per_prompt}"),
    ]
    items = (f"<div><dt>{key}</dt><dd>{value}<small>{rest}</small></dd></div>" for key, value, rest in shown_)
    return f'<dl class="figures">{"".join(items)}</dl>'


def _ledger(told: _Told, unit: Unit) -> list[str]:
    whole = {phase: seconds / 60 for phase, seconds in told.middle.ledger.items() if seconds}
    counts = {phase: seconds / 60 for phase, seconds in told.middle.counted.items() if seconds}
    bars = [*([("to the target", counts)] if counts else []), ("until the training ends", whole)]
    legend = "".join(f"<li>{swatch(phase)}{escape(name(phase))}</li>" for phase in whole)
    most, total = counts or whole, sum((counts or whole).values()) or 1.0
    rows = [(Cell(swatch(phase) + escape(name(phase))), unit.shown(counts[phase]) if phase in counts else "–",
             f"{most.get(phase, 0.0) / total:.1%}", unit.shown(minutes)) for phase, minutes in whole.items()]
    foot = ("sum", unit.shown(sum(counts.values())) if counts else "–", "100%", unit.shown(sum(whole.values())))
    head = ("phase", "to target", "share", "training ends")
    return ['<h2 id="ledger">Where the time goes</h2>',
            f'<p class="note">{unit.word.capitalize()} of the median replica. Every second belongs to the one phase '
            "that the engine is in. In rollout and drain the trainer waits for rollouts; log-probabilities have the "
            "driver's time in them, or the update where there are none.</p>",
            figures.ledger_svg(bars, unit), f'<ul class="legend">{legend}</ul>',
            table(head, rows, numeric_from=1, foot=foot)]


def _steps(simulation: Simulation) -> list[str]:
    count = len({step.step for run in simulation.runs for step in run.steps})
    if not count:
        return []
    first = f"The first {MOST_STEPS} of {count} steps. " if count > MOST_STEPS else ""
    seen = {phase for run in simulation.runs for step in run.steps for phase, spent in step.phases.items() if spent}
    legend = "".join(f"<li>{swatch(phase)}{words}</li>" for phase, words in figures.WAITS.items() if phase in seen)
    return ['<h2 id="steps">Time per step</h2>',
            f'<p class="note">{first}Validations and checkpoints left out. A bar is the replica whose step is the '
            "median, a dot the whole step of one replica. Both waits together are the exposed generation.</p>",
            figures.steps_svg(simulation.runs, simulation.counts),
            f'<ul class="legend">{legend}<li><span class="swatch work"></span>work</li>'
            '<li><span class="swatch replica"></span>one replica</li></ul>']


def _compared(comparison: Sequence[Compared]) -> list[str]:
    if not comparison:
        return []
    panels = "".join(
        f"<div><h3>{escape(item.name)}, batch {item.batch}</h3>"
        f'<p class="note">Median {item.measured_median:,.1f} {escape(item.unit)} measured, '
        f"{item.simulated_median:,.1f} simulated: {item.deviation:+.1%}{_held(item)}</p>"
        f"{figures.distributions_svg(item)}</div>" for item in comparison)
    return ['<h2 id="compared">Measured against simulated</h2>',
            '<p class="note">The share of values up to each, of runs that no part of the model was fitted to, and of '
            "simulations under their conditions. The dots are the medians.</p>",
            '<ul class="legend"><li><span class="swatch measured"></span>measured</li>'
            '<li><span class="swatch metric"></span>simulated</li></ul>', f'<div class="pair">{panels}</div>']


def _held(item: Compared) -> str:
    if item.bound is None:
        return ""
    return f", {'within' if abs(item.deviation) <= item.bound else 'outside'} {item.bound:.0%}"


def _standings(standings: Sequence[Standing]) -> list[str]:
    rows = [(str(item.quantity), Cell(escape(item.kind), "good" if item.kind == "calibrated" else "fair"),
             Cell(_why(item), "words")) for item in standings]
    return ['<h2 id="standings">What each quantity rests on</h2>',
            table(("quantity", "standing", Cell("why", "words")), rows, numeric_from=3)]


def _why(item: Standing) -> str:
    return escape(item.why) + "".join(f" <small>assumed: {escape(text)}</small>" for text in item.inside)


def _model(simulation: Simulation) -> list[str]:
    model, scenario = simulation.model, simulation.scenario
    rows = [("model", model.name), ("source", model.source), ("method", model.method), ("date", model.date),
            ("rollouts of a step at calibration", f"{model.rows[0]} to {model.rows[1]}")]
    changed = [f"{quantity} × {factor:g}" for quantity, factor in scenario.scales.items()]
    changed += [f"{words} × {factor:g}" for words, factor in (
        ("trainer's GPUs", scenario.trainer_gpus), ("generator's engines", scenario.engines),
        ("speed of decoding", scenario.decoding)) if factor != 1]
    rows.append(("taken otherwise than measured", ", ".join(changed) or "nothing"))
    return ['<h2 id="model">The model of times</h2>',
            f'<dl class="about">{"".join(f"<dt>{key}</dt><dd>{escape(value)}</dd>" for key, value in rows)}</dl>']


def _assumptions(simulation: Simulation) -> list[str]:
    model = simulation.model
    rows = [("passing step", "none" if simulation.counts is None else str(simulation.counts),
             "the first that is validated whose weights are taken to meet the target")]
    rows += [(f"assumptions.{key}", f"{value:g}", model.assumed.get(f"assumptions.{key}", ""))
             for key, value in model.assumptions.model_dump().items()]
    listed = {row[0] for row in rows}
    rows += [(key, "", why) for key, why in model.assumed.items() if key not in listed]
    return ['<h2 id="assumptions">Assumptions</h2>',
            '<p class="note">What the measurements cannot tell apart, or do not hold.</p>',
            table(("what", Cell("value", "n"), Cell("why", "words")),
                  [(Cell(broken(key), "key"), Cell(value, "n"), Cell(escape(why), "words"))
                   for key, value, why in rows], numeric_from=3)]
