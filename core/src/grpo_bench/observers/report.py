"""``report.html``: one page that shows a run, made from its folder alone.

The page needs nothing else: pictures are inline SVG, drawn for three widths of which the style sheet shows one; it
follows the reader's light or dark setting and uses no script.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..contract import Event, GrpoBenchError, Kind, Phase, Purpose, RunFacts, hookimpl
from . import _tables as tables
from ._charts import histogram, learning_curve, share_bar, step_times
from ._record import unscored
from ._schema import read_run
from ._svg import Frame
from ._text import duration, name, number
from ._view import RunView
from .trace import TraceFile

FILE = "report.html"
_CLASSES = ("wide", "middle", "narrow")
_CURVE_SIZES = ((1080, 330), (720, 300), (360, 250))
_STEP_SIZES = ((1080, 270), (720, 250), (360, 230))
_LENGTH_SIZES = ((524, 210), (720, 220), (360, 190))
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


def settle(view: RunView) -> Settled:
    return Settled(_learning(view), _steps(view), _rollouts(view))


def save_report(view: RunView, folder: Path, settled: Settled | None = None) -> Path:
    """Write the report of a view into its run folder, whole or not at all."""
    path = folder / FILE
    draft = path.with_suffix(".tmp")
    try:
        draft.write_text(page(view, folder, settled), encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise GrpoBenchError(f"cannot write {path}: {error.strerror}", hint="make room or restore access") from error
    return path


def page(view: RunView, folder: Path, settled: Settled | None = None) -> str:
    """The whole document."""
    settled = settled or settle(view)
    title = f"{view.started.get('profile', 'run')}, seed {view.started.get('seed', '–')}: {_headline(view)[0]}"
    colours = "".join(f"rect.p-{p}{{fill:var(--{p})}}.swatch.p-{p}{{background:var(--{p})}}" for p in Phase)
    style = files(__package__ or "").joinpath("report.css").read_text(encoding="utf-8")
    parts = [_header(view), _figures(view), *settled.learning, *_time(view), *settled.steps, *settled.rollouts,
             *_attempts(view), *_notices(view), *_records(view, folder),
             "<footer>Made by grpo-bench from this run's events.jsonl.</footer>"]
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">', f"<title>{escape(title)}</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">', f"<style>{style}{colours}</style>",
        "</head>", "<body>", "<main>", *parts, "</main>", "</body>", "</html>", ""])


def _header(view: RunView) -> str:
    started, summary = view.started, view.summary
    words, tone = _headline(view)
    reasons = unscored(view)
    scored = ' <span class="tag">not scored</span>' if reasons else ""
    profile, seed = started.get("profile", "–"), started.get("seed", "–")
    origin = f"grpo-bench · profile {profile} · seed {seed} · {summary['run'] or '–'}"
    text = [f'<header><p>{escape(origin)}{scored}</p><h1 class="{tone}">{escape(words)}</h1>']
    if summary["value"] is not None:
        against = f" against a target of {summary['target']:g}" if summary["target"] is not None else ""
        text.append(f'<p class="lead">{view.metric_name} {summary["value"]:.3f}{_error(view)}{against}</p>')
    errors = [event for event in view.notices if event.kind == Kind.ERROR]
    if summary["status"] == "failed" and errors:
        data = errors[-1].data
        hint = escape(data.get("hint") or "")
        text.append(f'<p class="error">{escape(data["message"])}<br><small>{hint}</small></p>')
    if reasons:
        why = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
        text.append(f'<div class="unscored"><p>Not a result, because</p><ul>{why}</ul></div>')
    return "".join(text) + "</header>"


def _figures(view: RunView) -> str:
    summary, most = view.summary, view.started.get("max_steps")
    sides = view.rollouts.values()
    rollouts, wall = sum(side.count for side in sides), summary["wall_s"]
    sampled = sum(tokens * count for side in sides for tokens, count in side.tokens.items())
    shown = [
        ("time to target", duration(summary["time_to_target_s"]), ""),
        ("wall clock", duration(wall), ""),
        ("CPU time", duration(summary["cpu_s"]), ""),
        ("steps", str(summary["steps"]), f" of at most {most}" if most else ""),
        ("rollouts", f"{rollouts:,}", f" {rollouts / wall:.1f}/s" if wall else ""),
        ("sampled tokens", f"{sampled:,}", f" {number(sampled / wall, 0)}/s" if wall else ""),
    ]
    items = (f"<div><dt>{key}</dt><dd>{value}<small>{rest}</small></dd></div>" for key, value, rest in shown)
    return f'<dl class="figures">{"".join(items)}</dl>'


def _learning(view: RunView) -> list[str]:
    if not view.validations and not view.steps:
        return ["<h2>Learning</h2>", '<p class="note">The run ended before its first step was over.</p>']
    note = "The band is one standard error over tasks to either side." if view.validations else ""
    return [
        "<h2>Learning curve</h2>", f'<p class="note">{note}</p>',
        _figure(partial(learning_curve, view), _CURVE_SIZES, right=100),
        _more("Validations", tables.validations(view)) if view.validations else "",
        _more("Steps", tables.steps(view)) if view.steps else "",
    ]


def _time(view: RunView) -> list[str]:
    ledger = view.summary["ledger"]
    if not any(ledger.values()):
        return []
    seen = [phase for phase, seconds in ledger.items() if seconds >= 0.0005]
    legend = "".join(f"<li>{tables.swatch(phase)}{escape(name(phase))}</li>" for phase in seen)
    return [
        "<h2>Where the time went</h2>",
        '<p class="note">Every second of the wall clock belongs to the one phase that the engine was in.</p>',
        share_bar(ledger, "share"), f'<ul class="legend">{legend}</ul>', tables.phases(view),
        "<h2>Whose time it was</h2>",
        '<p class="note">Of the critical path: what a plugin was alone in, and what it shared with others, such as a '
        "refit. Inside rollouts, which overlap: the hops that are its work.</p>", tables.plugins(view),
    ]


def _steps(view: RunView) -> list[str]:
    if not view.steps or not any(view.summary["ledger"].values()):
        return []
    return ["<h2>Time per step</h2>", '<p class="note">Stacked by phase, in the colours above.</p>',
            _figure(partial(step_times, view), _STEP_SIZES, top=26)]


def _rollouts(view: RunView) -> list[str]:
    if not view.hops.rollouts:
        return []
    sides = view.rollouts
    train, validation = sides[Purpose.TRAIN], sides[Purpose.VALIDATION]
    shown, which = (train, "training") if train.count else (validation, "validation")
    pictures = [
        f"<div><h3>{title.capitalize()}</h3>{_figure(partial(histogram, counts, title), _LENGTH_SIZES)}</div>"
        for title, counts in (("turns", shown.turns), ("sampled tokens", shown.tokens))]
    counted = tables.counted(view)
    happened = ["<h2>What happened in rollouts</h2>",
                '<p class="note">How often, and in how many rollouts.</p>', counted] if counted else []
    return [
        "<h2>Rollouts</h2>", f'<p class="note">Lengths of the {shown.count:,} {which} rollouts.</p>',
        f'<div class="pair">{"".join(pictures)}</div>', "<h2>How rollouts ended</h2>", tables.ends(view),
        *happened, "<h2>Time inside rollouts</h2>",
        '<p class="note">Rollouts overlap, so these times add up to more than the wall clock.</p>',
        tables.hops(view), "<h3>The longest rollouts</h3>", tables.stragglers(view),
    ]


def _attempts(view: RunView) -> list[str]:
    if len(view.attempts) < 2:
        return []
    return ["<h2>Attempts</h2>",
            '<p class="note">The run was interrupted and went on from a checkpoint. What an attempt did after that '
            "checkpoint was taken back: its time counts, its steps and rollouts do not.</p>", tables.attempts(view)]


def _notices(view: RunView) -> list[str]:
    return ["<h2>Alarms</h2>", tables.notices(view) if view.notices else '<p class="note">None.</p>']


def _records(view: RunView, folder: Path) -> list[str]:
    files_ = (("Resolved profile", folder / "profile.json"), ("Provenance", folder / "provenance.json"))
    shown = [(title, path.read_text(encoding="utf-8", errors="replace")) for title, path in files_ if path.is_file()]
    sha256 = view.summary["weights_sha256"]
    weights = f'<p class="note">Final weights, SHA-256: <code>{sha256}</code></p>' if sha256 else ""
    texts = [_more(title, f"<pre>{escape(text)}</pre>") for title, text in shown]
    return ["<h2>Record</h2>", weights, *texts] if texts or weights else []


def _headline(view: RunView) -> tuple[str, str]:
    summary = view.summary
    steps = f"{summary['steps']} step{'' if summary['steps'] == 1 else 's'}"
    words = {
        "target_met": f"Target met in {duration(summary['time_to_target_s'])}",
        "target_missed": f"Target missed in {steps}",
        "completed": f"Completed {steps} in {duration(summary['wall_s'])}",
        "failed": f"Failed after {steps}",
        "interrupted": f"Interrupted after {steps}",
    }
    if view.going_on:
        return f"Going on, {steps} so far", "fair"
    return words[summary["status"]], _TONES.get(summary["status"], "fair")


def _error(view: RunView) -> str:
    return f" ± {view.validations[-1].data['standard_error']:.3f}" if view.validations else ""


def _figure(draw: Callable[[Frame, str], str], sizes: tuple[tuple[int, int], ...], **margins: int) -> str:
    """The same picture at each size; the style sheet shows the one that fits."""
    pictures = (draw(Frame(width, height, **margins), class_) for class_, (width, height) in zip(_CLASSES, sizes))
    return f"<figure>{''.join(pictures)}</figure>"


def _more(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"

