"""The report's tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..contract.picture import Picture, stretches
from . import _evaluation, _record
from ._journal_view import Attempt
from ._text import duration, name, number, taken_back
from ._view import Notice, RunView
from .ledger import HopLedger, unaccounted

_MOST_NOTICES = 40
_BESIDE = "work beside"
_TAMPERING = "tampering"


@dataclass(frozen=True, slots=True)
class Cell:
    """Content that is HTML already, with the class of its cell."""

    html: str
    class_: str = ""


Row = Sequence[str | Cell]


def table(head: Row, rows: Iterable[Row], *, numeric_from: int, foot: Row = ()) -> str:
    """A table; columns from ``numeric_from`` on are figures, set to the right."""

    def row(cells: Row, tag: str) -> str:
        parts = []
        for index, cell in enumerate(cells):
            content, style = (cell.html, cell.class_) if isinstance(cell, Cell) else (escape(cell), "")
            style = style or ("n" if index >= numeric_from else "")
            attributes = (' scope="col"' if tag == "th" else "") + (f' class="{style}"' if style else "")
            parts.append(f"<{tag}{attributes}>{content}</{tag}>")
        return f"<tr>{''.join(parts)}</tr>"

    end = f"<tfoot>{row(foot, 'td')}</tfoot>" if foot else ""
    return (f'<div class="scroll"><table><thead>{row(head, "th")}</thead>'
            f"<tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody>{end}</table></div>")


def phases(view: RunView) -> str:
    """Where the wall clock went; the foot compares the sum with the clock."""
    every = _record.phases(view)
    found = [item for item in every if item["seconds"] >= 0.0005]
    rows = [(_named(swatch(item["phase"]) + escape(name(item["phase"])), item["work"]), duration(item["seconds"]),
             f"{item['share']:.1%}", duration(item["step_mean_s"]), Cell(escape(item["work"]), _BESIDE))
            for item in found]
    spent: dict[str, float] = view.summary["ledger"]
    wall = view.summary["wall_s"]
    missing = unaccounted(spent, wall)
    note = "" if missing is None else f' <span class="bad">{duration(abs(missing))} unaccounted for</span>'
    foot = ("sum", duration(sum(spent.values())), "100%", duration(_record.a_step(every)), Cell("", _BESIDE))
    took = "The simulated run takes" if view.modelled else "The run took"
    return table(("phase", "time", "share", "a step", Cell("whose work", _BESIDE)), rows, numeric_from=1, foot=foot) + (
        f'<p class="note">{took} {duration(wall)} of wall clock from the start of its process.{note}</p>')


def hosts(picture: Picture) -> str:
    """Every host, with the ranks there."""
    roles = [role for role, *_ in picture.legend if role]
    rows = [(host.name, host.domain or "–", *(stretches(host.ranks.get(role, ())) or "–" for role in roles),
             "spare" if host.spare else "" if host.ranks else "idle") for host in picture.hosts]
    return table(("host", "domain", *(f"{role} ranks" for role in roles), ""), rows, numeric_from=len(roles) + 3)


def what_counts(found: Mapping[str, Any]) -> str:
    """The phases of training and evaluation by what part of the run they are in."""
    parts = found["parts"]
    rows = [(Cell(swatch(item["phase"]) + escape(name(item["phase"]))),
             *(duration(item[part] or None) for part in parts)) for item in found["phases"]
            if max(item[part] for part in parts) >= 0.0005]
    foot = ("sum", *(duration(sum(item[part] for item in found["phases"])) for part in parts))
    return table(("phase", *map(name, parts)), rows, numeric_from=1, foot=foot)


def weights(view: RunView, told: Mapping[str, Any]) -> str:
    """What came of each checkpoint of the evaluation."""
    found = {item.step: item.data for item in view.validations}
    rows = []
    for item in told["weights"]:
        if data := found.get(item["step"]):
            came = (number(data["metrics"][view.metric]), f"± {data['standard_error']:.3f}",
                    f"{data['passed']} of {data['tasks']}", number(data["metrics"]["accuracy"]))
        else:
            came = ("–",) * 4
        verdict = Cell("target met", "good") if item["target_met"] else Cell("" if data else "not evaluated", "work")
        rows.append((str(item["step"]), *came, duration(item["updated_s"]), duration(item["took_s"]), verdict))
    head = ("after step", view.metric_name, "standard error", "tasks passed", "accuracy", "updated at",
            "evaluation took", Cell("", "work"))
    return table(head, rows, numeric_from=0)


def hops(ledger: HopLedger) -> str:
    rows = [(_named(escape(name(item["hop"])), item["work"]), duration(item["seconds"]), f"{item['share']:.1%}",
             duration(item["mean_s"]), duration(item["longest_s"]), Cell(escape(item["work"]), _BESIDE))
            for item in _evaluation.hops(ledger)]
    return table(("hop", "all rollouts", "share", "mean", "longest", Cell("whose work", _BESIDE)), rows, numeric_from=1)


def stragglers(view: RunView) -> str:
    rows = [(_identifier(s.rollout_id), _identifier(s.task_id), s.purpose,
             str(s.step) if s.step is not None else "–", name(s.end), Cell(duration(s.seconds), "n"),
             Cell(escape(f"{name(s.hop)} {duration(s.hop_seconds)}"), "work")) for s in view.stragglers]
    return table(("rollout", "task", "purpose", "step", "end", Cell("time", "n"), Cell("most of it", "work")),
                 rows, numeric_from=7)


def plugins(view: RunView) -> str:
    """Time and failures by plugin."""
    rows: list[Row] = []
    evaluated = view.evaluation is not None
    for item in view.plugins:
        failed = [f"{count:,} × {name(cause)}" for cause, count in item.failed.most_common()]
        failed += [f"{item.errors} × error that ended an attempt"] if item.errors else []
        about = f'<small class="origin">{escape(item.distribution)}</small>' if item.distribution else ""
        about += '<small class="fair">stand-in</small>' if item.stand_in else ""
        rows.append((item.role, Cell(escape(item.plugin or "–") + about), duration(item.alone_s or None),
                     duration(item.shared_s or None), *([duration(item.evaluation_s or None)] if evaluated else []),
                     duration(item.rollouts_s or None),
                     Cell(escape(", ".join(failed)) or "none", "work")))
    head = ("role", "plugin", Cell("alone", "n"), Cell("shared", "n"),
            *([Cell("in evaluation", "n")] if evaluated else []), Cell("in rollouts", "n"), Cell("failures", "work"))
    return table(head, rows, numeric_from=2)


def attempts(found: Iterable[Attempt]) -> str:
    """What each attempt took, what of it was taken back, and the differences it was forced over."""
    rows = []
    for item in found:
        undone = taken_back(item.undone_s, item.undone_steps, item.undone_rollouts)
        forced = "<br>".join(map(escape, item.forced)) or "–"
        rows.append((str(item.number), f"step {item.from_step}" if item.from_step else "the start",
                     Cell(duration(item.seconds), "n"), Cell(escape(undone), "work"), Cell(forced, "words")))
    head = ("attempt", "went on from", Cell("took", "n"), Cell("taken back", "work"),
            Cell("differences it was forced over", "words"))
    return table(head, rows, numeric_from=len(head))


def ends(view: RunView) -> str:
    """How rollouts ended, training beside validation."""
    sides = [*view.rollouts.values()]
    found = sorted({end for side in sides for end in side.ends}, key=lambda end: -sum(side.ends[end] for side in sides))
    rows = []
    for end, cause in found:
        example = view.messages.get((end, cause), "")
        counts = [(side.ends[end, cause], max(1, side.count)) for side in sides]
        shares = [Cell(f"{count:,} ({count / total:.1%})", "n") for count, total in counts]
        rows.append((name(end), name(cause) or "–", *shares, Cell(escape(example) or "–", "words")))
    head = ("end", "cause", Cell("training", "n"), Cell("validation", "n"), Cell("for example", "words"))
    return table(head, rows, numeric_from=len(head))


def counted(view: RunView) -> str:
    """What happened inside rollouts, training beside validation; empty where nothing did."""
    sides = [*view.rollouts.values()]
    rows = []
    for what in sorted({what for side in sides for what in side.counted}):
        cells = [Cell(f"{side.counted[what]:,} in {side.counted_in[what]:,}", "n") for side in sides]
        rows.append((Cell(escape(name(what)), "bad" if what == _TAMPERING else ""), *cells))
    head = ("what", Cell("training", "n"), Cell("validation", "n"))
    return table(head, rows, numeric_from=len(head)) if rows else ""


def validations(view: RunView) -> str:
    if view.modelled:
        return table(("after step", "tasks", "took", "at"), (
            (str(item.step), str(item.data["tasks"]), duration(item.data["seconds"]), duration(item.elapsed_s))
            for item in view.validations), numeric_from=0)
    rows = []
    for validated in view.validations:
        data = validated.data
        rows.append((str(validated.step), number(data["metrics"][view.metric]), f"± {data['standard_error']:.3f}",
                     f"{data['passed']} of {data['tasks']}", number(data["metrics"]["accuracy"]),
                     duration(data["seconds"]), duration(validated.elapsed_s)))
    head = ("after step", view.metric_name, "standard error", "tasks passed", "accuracy", "took", "at")
    return table(head, rows, numeric_from=0)


def steps(view: RunView) -> str:
    if view.modelled:
        return table(("step", "rollouts", "sampled tokens", "time"), (
            (str(row.step), f"{row.step_data['rollouts']:,}", f"{row.step_data['sampled_tokens']:,}",
             duration(row.step_data["seconds"])) for row in view.steps), numeric_from=0)
    rows = []
    for row in view.steps:
        masked = sum((row.batch.get("masked") or {}).values())
        rows.append((str(row.step), number(row.step_data["reward_mean"]), number(row.update.get("loss")),
                     number(row.update.get("grad_norm")), f"{row.step_data['rollouts']:,}", str(masked),
                     str(row.batch.get("advantage_zero_groups", "–")), f"{row.step_data['sampled_tokens']:,}",
                     _probe(row.refit), duration(row.step_data["seconds"])))
    head = ("step", "reward", "loss", "gradient norm", "rollouts", "masked", "groups without signal", "sampled tokens",
            "probe difference", "time")
    return table(head, rows, numeric_from=0)


def _probe(refit: Mapping[str, Any]) -> str:
    difference = refit.get("probe_difference")
    return f"{difference:.1e}" if difference is not None and math.isfinite(difference) else number(difference)


def notices(view: RunView) -> str:
    """Alarms, stalls and errors; equal ones once, with their number."""
    merged: dict[tuple[str, str], list[Notice]] = {}
    for notice in view.notices:
        merged.setdefault((notice.event.kind, _record.message(notice.event)), []).append(notice)
    rows = []
    for (kind, text), found in list(merged.items())[:_MOST_NOTICES]:
        first, during = found[0].event, " of the evaluation" if found[0].evaluating else ""
        rows.append((kind, f"{len(found)} ×" if len(found) > 1 else "once", duration(first.elapsed_s) + during,
                     str(first.step) if first.step is not None else "–", Cell(escape(text), "words")))
    left = len(merged) - len(rows)
    more = f'<p class="note">{left} more kinds of notices are in events.jsonl.</p>' if left > 0 else ""
    head = ("kind", "how often", "first at", "step", Cell("what", "words"))
    return table(head, rows, numeric_from=len(head)) + more


def _identifier(text: str) -> Cell:
    """One that may be long: the style sheet cuts it, the tool tip holds all of it."""
    return Cell(f'<span title="{escape(text)}">{escape(text)}</span>', "id")


def _named(html: str, work: str) -> Cell:
    """A name, and beneath it whose work it is where the page is too narrow for the column that says so."""
    return Cell(f'{html}<small class="beneath">{escape(work)}</small>')


def swatch(phase: str) -> str:
    return f'<span class="swatch p-{escape(phase)}"></span>'

