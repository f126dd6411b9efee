"""The sections of the report's page, each as pieces of HTML; one that has nothing to show is none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path

from ..contract import Purpose
from . import _tables as tables
from ._charts import histogram, learning_curve, share_bar, step_times
from ._evaluation import evaluation, what_counts
from ._placement import placed
from ._svg import Frame
from ._text import counted, duration, name
from ._view import RunView

_CLASSES = ("wide", "middle", "narrow")
_CURVE_SIZES = ((1080, 330), (720, 300), (360, 250))
_STEP_SIZES = ((1080, 270), (720, 250), (360, 230))
_LENGTH_SIZES = ((524, 210), (720, 220), (360, 190))
_PLACEMENT_WIDTHS = (1080, 720, 360)


def learning(view: RunView) -> list[str]:
    if not view.validations and not view.steps:
        return ["<h2>Learning</h2>", '<p class="note">The run ended before its first step was over.</p>']
    tabled = [_more("Validations", tables.validations(view)) if view.validations else "",
              _more("Steps", tables.steps(view)) if view.steps else ""]
    if view.modelled:
        return ["<h2>Learning</h2>", '<p class="note">Nothing was computed: a simulation has no rewards, losses or '
                "accuracy.</p>", *tabled]
    note = "The band is one standard error over tasks to either side." if view.validations else ""
    return [
        "<h2>Learning curve</h2>", f'<p class="note">{note}</p>',
        _figure(partial(learning_curve, view), _CURVE_SIZES, right=100), *tabled,
    ]


def evaluated(view: RunView) -> list[str]:
    """What came of each checkpoint of a deferred evaluation, and which of the run's time counts."""
    told, counts = evaluation(view), what_counts(view)
    if told is None or counts is None or view.evaluation is None:
        return []
    took = f"{duration(told['wall_s'])} of wall clock" + (
        f", of which {duration(abs(told['unaccounted_s']))} are unaccounted for" if told["unaccounted_s"] else "")
    inside = ["<h3>Time inside its rollouts</h3>", tables.hops(view.evaluation.hops)] if told["hops"] else []
    return [
        "<h2>Evaluation</h2>",
        f'<p class="note">{told["evaluated"]} of {counted(told["checkpoints"], "checkpoint")} that the training left '
        f"behind were evaluated afterwards, in order, in {took}. What counts is when the update behind the weights had "
        "ended.</p>", tables.weights(view, told), *inside,
        f"<h2>{escape(counts['title'])}</h2>",
        '<p class="note">Every second of training and evaluation, by phase. What the training did after the update '
        "that counts, and the evaluation, are outside.</p>", tables.what_counts(counts),
    ]


def time(view: RunView) -> list[str]:
    ledger = view.summary["ledger"]
    if not any(ledger.values()):
        return []
    whose = "training's " if view.evaluation is not None else ""
    seen = [phase for phase, seconds in ledger.items() if seconds >= 0.0005]
    legend = "".join(f"<li>{tables.swatch(phase)}{escape(name(phase))}</li>" for phase in seen)
    return [
        f"<h2>Where the {whose}time went</h2>",
        '<p class="note">Every second of the wall clock belongs to the one phase that the engine was in.</p>',
        share_bar(ledger, "share"), f'<ul class="legend">{legend}</ul>', tables.phases(view),
        "<h2>Whose time it was</h2>",
        '<p class="note">Of the critical path: what a plugin was alone in, and what it shared with others, such as a '
        "refit. Inside rollouts, which overlap: the hops that are its work.</p>", tables.plugins(view),
    ]


def steps(view: RunView) -> list[str]:
    if not view.steps or not any(view.summary["ledger"].values()):
        return []
    return ["<h2>Time per step</h2>", '<p class="note">Stacked by phase, in the colours above.</p>',
            _figure(partial(step_times, view), _STEP_SIZES, top=26)]


def rollouts(view: RunView) -> list[str]:
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
        tables.hops(view.hops), "<h3>The longest rollouts</h3>", tables.stragglers(view),
    ]


def placement(view: RunView) -> list[str]:
    """Who sat where; nothing where everybody sat on one host."""
    picture = view.picture
    if sum(bool(host.ranks) for host in picture.hosts) < 2:
        return []
    pictures = "".join(placed(picture, width, class_) for class_, width in zip(_CLASSES, _PLACEMENT_WIDTHS))
    crossed = "; ".join(picture.crossed) or "none"
    return ["<h2>Placement</h2>",
            f'<p class="note">Hosts by network domain, as the latest attempt was placed. Groups that reach beyond one: '
            f"{escape(crossed)}.</p>", f"<figure>{pictures}</figure>", _more("Hosts", tables.hosts(picture))]


def attempts(view: RunView) -> list[str]:
    found = []
    if len(view.attempts) > 1:
        found += ["<h2>Attempts</h2>",
                  '<p class="note">The run was interrupted and went on from a checkpoint. What an attempt did after '
                  "that checkpoint was taken back: its time counts, its steps and rollouts do not.</p>",
                  tables.attempts(view.attempts)]
    if view.evaluation is not None and len(view.evaluation.attempts) > 1:
        found += ["<h2>Attempts at the evaluation</h2>",
                  '<p class="note">It was interrupted and went on after the last checkpoint that was evaluated.</p>',
                  tables.attempts(view.evaluation.attempts)]
    return found


def notices(view: RunView) -> list[str]:
    return ["<h2>Alarms</h2>", tables.notices(view) if view.notices else '<p class="note">None.</p>']


def records(view: RunView, folder: Path) -> list[str]:
    files_ = (("Resolved profile", folder / "profile.json"), ("Provenance", folder / "provenance.json"))
    shown = [(title, path.read_text(encoding="utf-8", errors="replace")) for title, path in files_ if path.is_file()]
    sha256 = view.summary["weights_sha256"]
    weights = f'<p class="note">Final weights, SHA-256: <code>{sha256}</code></p>' if sha256 else ""
    texts = [_more(title, f"<pre>{escape(text)}</pre>") for title, text in shown]
    return ["<h2>Record</h2>", weights, *texts] if texts or weights else []


def _figure(draw: Callable[[Frame, str], str], sizes: tuple[tuple[int, int], ...], **margins: int) -> str:
    """The same picture at each size; the style sheet shows the one that fits."""
    pictures = (draw(Frame(width, height, **margins), class_) for class_, (width, height) in zip(_CLASSES, sizes))
    return f"<figure>{''.join(pictures)}</figure>"


def _more(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>"

