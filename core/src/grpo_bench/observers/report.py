"""``report.html``: one page that shows a run, made from its folder alone.

The page needs nothing else: pictures are inline SVG, drawn for three widths of which the style sheet shows one; it
follows the reader's light or dark setting and uses no script.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, Phase, RunFacts, hookimpl
from . import _sections as sections
from ._document import document, style, write_whole
from ._evaluation import stage
from ._record import unscored
from ._schema import read_run
from ._text import assumed, counted, duration, number, simulated
from ._view import RunView
from .trace import TraceFile

FILE = "report.html"
_TONES = {"target_met": "good", "completed": "good", "failed": "bad"}


class ReportWriter:
    """The observer that writes the report and the trace of a run. It follows the run and draws all pictures when the
    run shuts down, so that little is left for the time after the last event, which no ledger holds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._view = RunView()
        self._settled: Settled | None = None
        self._trace: TraceFile | None = None

    @hookimpl
    def run_started(self, run: RunFacts) -> None:
        self._trace = TraceFile(self._folder)
        for event in run.history:
            self._follow(event)

    @hookimpl
    def event(self, event: Event) -> None:
        self._follow(event)
        if event.kind == Kind.PHASE and event.data["phase"] == Phase.SHUTDOWN:
            self._settled = settle(self._view)
            page(self._view, self._folder, self._settled)  # a first page costs more: pay that before the last event

    def _follow(self, event: Event) -> None:
        self._view.add(event)
        if self._trace is not None:
            self._trace.add(event)

    @hookimpl
    def run_ended(self, summary: dict[str, Any]) -> None:
        save_report(self._view, self._folder, self._settled)
        if self._trace is not None:
            self._trace.end()


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder from what lies there, and return its path."""
    return save_report(RunView(read_run(folder)), folder)


@dataclass(frozen=True, slots=True)
class Settled:
    """The sections that nothing changes any more once a run shuts down: those with pictures, which take time."""

    learning: list[str]
    steps: list[str]
    rollouts: list[str]
    placement: list[str]


def settle(view: RunView) -> Settled:
    return Settled(sections.learning(view), sections.steps(view), sections.rollouts(view), sections.placement(view))


def save_report(view: RunView, folder: Path, settled: Settled | None = None) -> Path:
    """Write the report of a view into its run folder, whole or not at all."""
    return write_whole(folder / FILE, page(view, folder, settled))


def page(view: RunView, folder: Path, settled: Settled | None = None) -> str:
    """The whole document."""
    settled = settled or settle(view)
    of = "simulation of " if view.modelled else ""
    title = f"{of}{view.started.get('profile', 'run')}, seed {view.started.get('seed', '–')}: {_headline(view)[0]}"
    parts = [_header(view), _figures(view), *settled.learning, *sections.evaluated(view), *sections.time(view),
             *settled.steps, *settled.rollouts, *settled.placement, *sections.attempts(view), *sections.notices(view),
             *sections.records(view, folder), "<footer>Made by grpo-bench from this run's events.jsonl.</footer>"]
    return document(title, style("placement.css"), parts)


def _header(view: RunView) -> str:
    started, summary = view.started, view.summary
    words, tone = _headline(view)
    reasons = unscored(view)
    tags = "".join(f' <span class="tag">{tag}</span>' for tag, holds in (
        ("simulation", view.modelled), ("not scored", reasons)) if holds)
    profile, seed = started.get("profile", "–"), started.get("seed", "–")
    origin = f"grpo-bench · profile {profile} · seed {seed} · {summary['run'] or '–'}"
    text = [f'<header><p>{escape(origin)}{tags}</p><h1 class="{tone}">{escape(words)}</h1>']
    if view.modelled:
        text.append(f'<p class="lead">{escape(simulated(view.modelled))}</p>')
    if summary["value"] is not None:
        against = f" against a target of {summary['target']:g}" if summary["target"] is not None else ""
        text.append(f'<p class="lead">{view.metric_name} {summary["value"]:.3f}{_error(view)}{against}</p>')
    errors = [notice.event.data for notice in view.notices if notice.event.kind == Kind.ERROR]
    if summary["status"] == "failed" and errors:
        data = errors[-1]
        hint = escape(data.get("hint") or "")
        text.append(f'<p class="error">{escape(data["message"])}<br><small>{hint}</small></p>')
    if reasons:
        why = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
        text.append(f'<div class="unscored"><p>Not a result, because</p><ul>{why}</ul></div>')
    return "".join(text) + "</header>"


def _figures(view: RunView) -> str:
    summary, most = view.summary, view.started.get("max_steps")
    until = summary["time_to_target_s"]
    sides, evaluated = view.rollouts.values(), summary["evaluation"]
    rollouts, wall = sum(side.count for side in sides), summary["wall_s"]
    whole = wall + (evaluated["wall_s"] if evaluated else 0.0)
    sampled = sum(tokens * count for side in sides for tokens, count in side.tokens.items())
    shown = [
        ("time to target", duration(until), " assumed" if view.modelled and until is not None else ""),
        ("wall clock", duration(wall), " of the training" if evaluated else ""),
        *([("evaluation", duration(evaluated["wall_s"]), "")] if evaluated else []),
        *([] if view.modelled else [("CPU time", duration(summary["cpu_s"]), "")]),
        ("steps", str(summary["steps"]), f" of at most {most}" if most else ""),
        ("rollouts", f"{rollouts:,}", f" {rollouts / whole:.1f}/s" if whole else ""),
        ("sampled tokens", f"{sampled:,}", f" {number(sampled / whole, 0)}/s" if whole else ""),
    ]
    items = (f"<div><dt>{key}</dt><dd>{value}<small>{rest}</small></dd></div>" for key, value, rest in shown)
    return f'<dl class="figures">{"".join(items)}</dl>'


def _headline(view: RunView) -> tuple[str, str]:
    summary = view.summary
    steps = counted(summary["steps"], "step")
    words = {
        "target_met": f"Target met in {duration(summary['time_to_target_s'])}",
        "target_missed": f"Target missed in {steps}",
        "completed": f"Completed {steps} in {duration(summary['wall_s'])}",
        "failed": f"Failed after {steps}",
        "interrupted": f"Interrupted after {steps}",
    }
    if how := stage(view):
        return how.capitalize(), "fair" if view.modelled else _TONES.get(summary["status"], "fair")
    if view.going_on:
        return f"Going on, {steps} so far", "fair"
    if view.modelled:
        return assumed(words[summary["status"]]), "fair"
    return words[summary["status"]], _TONES.get(summary["status"], "fair")


def _error(view: RunView) -> str:
    return f" ± {view.validations[-1].data['standard_error']:.3f}" if view.validations else ""
