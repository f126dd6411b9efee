"""The report's tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..contract import Event, Kind, Purpose
from ._text import duration, name, number
from ._view import RunView
from .ledger import unaccounted

_MOST_NOTICES = 40


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
    spent: dict[str, float] = view.summary["ledger"]
    total = sum(spent.values()) or 1.0
    steps = max(1, len(view.steps))
    per_step = {phase: sum(by.get(phase, 0.0) for step, by in view.tally.ledger.steps().items() if step > 0) / steps
                for phase in spent}
    rows = [(Cell(swatch(phase) + escape(name(phase))), duration(seconds), f"{seconds / total:.1%}",
             duration(per_step[phase] or None)) for phase, seconds in spent.items() if seconds >= 0.0005]
    wall = view.summary["wall_s"]
    missing = unaccounted(spent, wall)
    note = "" if missing is None else f' <span class="bad">{duration(abs(missing))} unaccounted for</span>'
    foot = ("sum", duration(sum(spent.values())), "100%", duration(sum(per_step.values()) or None))
    return table(("phase", "time", "share", "a step"), rows, numeric_from=1, foot=foot) + (
        f'<p class="note">The run took {duration(wall)} of wall clock from the start of its process.{note}</p>')


def hops(view: RunView) -> str:
    total, count = view.hops.seconds or 1.0, max(1, view.hops.rollouts)
    rows = [(name(hop), duration(spent.total), f"{spent.total / total:.1%}", duration(spent.total / count),
             duration(spent.longest)) for hop, spent in view.hops.in_order()]
    return table(("hop", "all rollouts", "share", "mean", "longest"), rows, numeric_from=1)


def stragglers(view: RunView) -> str:
    rows = [(Cell(escape(s.rollout_id), "id"), Cell(escape(s.task_id), "id"), s.purpose,
             str(s.step) if s.step is not None else "–", name(s.end), duration(s.seconds),
             f"{name(s.hop)} {duration(s.hop_seconds)}") for s in view.hops.stragglers()]
    return table(("rollout", "task", "purpose", "step", "end", "time", "most of it"), rows, numeric_from=5)


def ends(view: RunView) -> str:
    """How rollouts ended, training beside validation."""
    sides = [view.rollouts[purpose] for purpose in Purpose]
    found = sorted({end for side in sides for end in side.ends}, key=lambda end: -sum(side.ends[end] for side in sides))
    rows = []
    for end, cause in found:
        message = next((side.messages[end, cause] for side in sides if (end, cause) in side.messages), "")
        counts = [(side.ends[end, cause], max(1, side.count)) for side in sides]
        shares = [Cell(f"{count:,} ({count / total:.1%})", "n") for count, total in counts]
        rows.append((name(end), name(cause) or "–", *shares, Cell(escape(message) or "–", "words")))
    head = ("end", "cause", Cell("training", "n"), Cell("validation", "n"), "for example")
    return table(head, rows, numeric_from=len(head))


def validations(view: RunView) -> str:
    rows = []
    for validated in view.validations:
        data = validated.data
        rows.append((str(validated.step), number(data["metrics"][view.metric]), f"± {data['standard_error']:.3f}",
                     f"{data['passed']} of {data['tasks']}", number(data["metrics"]["accuracy"]),
                     duration(data["seconds"]), duration(validated.elapsed_s)))
    head = ("after step", view.metric_name, "standard error", "tasks passed", "accuracy", "took", "at")
    return table(head, rows, numeric_from=0)


def steps(view: RunView) -> str:
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
    return "–" if difference is None else f"{difference:.1e}"


def notices(view: RunView) -> str:
    """Alarms, stalls, errors and resumptions; equal ones once, with their number."""
    merged: dict[tuple[str, str], list[Event]] = {}
    for event in view.notices:
        merged.setdefault((event.kind, _message(event)), []).append(event)
    rows = [(kind, f"{len(events)} ×" if len(events) > 1 else "once", duration(events[0].elapsed_s),
             str(events[0].step) if events[0].step is not None else "–", Cell(escape(message), "words"))
            for (kind, message), events in list(merged.items())[:_MOST_NOTICES]]
    left = len(merged) - len(rows)
    more = f'<p class="note">{left} more kinds of notices are in events.jsonl.</p>' if left > 0 else ""
    head = ("kind", "how often", "first at", "step", "what")
    return table(head, rows, numeric_from=len(head)) + more


def swatch(phase: str) -> str:
    return f'<span class="swatch p-{escape(phase)}"></span>'


def _message(event: Event) -> str:
    data = event.data
    match event.kind:
        case Kind.STALL:
            return f"nothing moved for a while; everybody waited for {data.get('waiting')}"
        case Kind.RESUMED:
            return f"attempt {data['attempt']} went on from step {data['from_step']}"
        case Kind.ERROR:
            where = ", ".join(f"{key} {data[key]}" for key in ("plugin", "role", "task") if data.get(key))
            hint = data.get("hint")
            return data["message"] + (f" [{where}]" if where else "") + (f" ({hint})" if hint else "")
        case _:
            return str(data["message"])
