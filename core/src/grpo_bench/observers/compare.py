"""Two runs beside each other: what came out, where the time went, and what was different about them.

B is set against A: a difference is B minus A, a ratio B over A. Phases are compared in all and by step (the median over
steps, which the number of steps does not change). Whatever keeps the two from being comparable is said first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract import Status
from ._layout import grid, wrapped
from ._plain import headline, outcome, subject, titled
from ._record import plain, record
from ._text import counted, duration, name
from ._view import RunView
from .overview import view_of

_OPEN = (Status.INTERRUPTED, Status.FAILED, Status.TRAINED)
_PROSE = frozenset({"description"})
_MOST_LINES = 40


class Comparison:
    """Two run folders. ``data`` is plain data; RunFolderError where a journal cannot be read."""

    def __init__(self, a: Path, b: Path) -> None:
        self.data = plain(compare(view_of(a), view_of(b)))

    def lines(self, width: int | None) -> Iterator[str]:
        """The comparison as text, for ``width`` columns; None: as wide as it gets."""
        return _lines(self.data, width)


def compare(a: RunView, b: RunView) -> dict[str, Any]:
    """All that can be said of two runs, as plain data."""
    records = [record(view) for view in (a, b)]
    started = [{**view.started, **({"settings": view.settings} if view.settings else {})} for view in (a, b)]
    kept = ("modelled", "run", "profile", "seed", "status", "going_on", "scored", "unscored", "metric", "value",
            "target", "steps", "attempts", "time_to_target_s", "wall_s", "cpu_s", "validations", "stage", "evaluation")
    return {
        "a": {key: records[0].get(key) for key in kept}, "b": {key: records[1].get(key) for key in kept},
        "described": all("settings" in data for data in started), "warnings": list(_warnings(records, started)),
        "phases": _beside(records, "phases", "phase", ("seconds", "share", "step_median_s", "work")),
        "hops": _beside(records, "hops", "hop", ("seconds", "share", "mean_s", "longest_s", "work")),
        "evaluation": _beside([one["evaluation"] or {"phases": []} for one in records], "phases", "phase",
                              ("seconds", "share", "work")),
        "parts": _differences(*(_parts(data) for data in started)),
        "settings": _differences(*(data.get("settings", {}) for data in started)),
        "tasks": _differences(*(data.get("tasks", {}) for data in started)),
    }


def _warnings(records: Sequence[Mapping[str, Any]], started: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    a, b = records
    if a["run"] == b["run"]:
        yield "both are the same run"
    for label, one in zip("AB", records):
        steps = counted(one["steps"], "step")
        if modelled := one.get("modelled"):
            yield (f"{label} is a simulation with times from {modelled}: nothing in it was computed, and whether it "
                   "meets the target is assumed")
        if one["going_on"]:
            yield f"{label} is still going on: {one['stage'] or steps + ' so far'}"
        elif one["status"] in _OPEN and not (one.get("modelled") and one["status"] == Status.TRAINED):
            yield f"{label} did not come to its end: {one['stage'] or one['status'] + ' after ' + steps}"
        if one["attempts"] > 1:
            yield (f"{label} took {one['attempts']} attempts: each has a start-up of its own, and what was taken back "
                   "counts, too")
        if one["unscored"] and a["unscored"] != b["unscored"]:
            yield f"{label} is not scored: {'; '.join(one['unscored'])}"
    if a["unscored"] and a["unscored"] == b["unscored"]:
        yield f"neither is scored: {'; '.join(a['unscored'])}"
    deferred = [one["evaluation"] is not None or one["status"] == Status.TRAINED for one in (a, b)]
    if deferred[0] != deferred[1]:
        yield (f"the evaluation of {'AB'[deferred[1]]} is deferred; the validations of {'AB'[deferred[0]]} are part of "
               "its training")
    for key, what in (("metric", "metrics"), ("target", "targets")):
        if a[key] != b[key]:
            yield f"{what} differ: {_value(a[key])} against {_value(b[key])}"
    for title, section in (("training", "grpo"), ("validation", "validation")):
        tasks = [_tasks(data, section) for data in started]
        if None not in tasks and tasks[0] != tasks[1]:
            yield f"{title} tasks differ"
    if any("settings" not in data for data in started):
        yield "not both journals say what ran: parts, settings and tasks are not compared"


def _tasks(started: Mapping[str, Any], section: str) -> Any:
    """What is known of the tasks behind a section of the profile: how many, and their fingerprint."""
    split = started.get("settings", {}).get(section, {}).get("split")
    return started.get("tasks", {}).get(split)


def _parts(started: Mapping[str, Any]) -> dict[str, Any]:
    """Role -> what served it, in a line, and the facts it gave of itself, by its name."""
    found: dict[str, Any] = {}
    for role, part in started.get("parts", {}).items():
        origin = " ".join(str(part[key]) for key in ("distribution", "version") if part.get(key))
        found[role] = f"{part.get('name', '')} ({origin})" + (", stand-in" if part.get("stand_in") else "")
        found[f"{role} {part.get('name', '')}"] = part.get("facts", {})
    return found | {"placements": started.get("placements", {})}


def _beside(records: Sequence[Mapping[str, Any]], part: str, key: str, kept: Sequence[str]) -> list[dict[str, Any]]:
    sides = [{item[key]: item for item in one[part]} for one in records]
    rows = []
    for title in dict.fromkeys([*sides[0], *sides[1]]):
        a, b = (side.get(title) for side in sides)
        seconds = [item["seconds"] if item else 0.0 for item in (a, b)]
        rows.append({
            key: title, **{label: {k: item[k] for k in kept if k != "work"} if item else None
                           for label, item in (("a", a), ("b", b))},
            "difference_s": seconds[1] - seconds[0], "ratio": _ratio(*seconds), "work": (a or b or {})["work"]})
    return rows


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Where two trees differ, key by key; nothing where one is not known. Of two plugins' facts only those of the same
    plugin are compared."""
    if not a or not b:
        return []
    return [item for key in dict.fromkeys([*a, *b])
            if key not in _PROSE and (" " not in key or (key in a and key in b))
            for item in _unequal(key, a.get(key), b.get(key))]


def _unequal(path: str, a: Any, b: Any) -> Iterator[dict[str, Any]]:
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        sides = [side if isinstance(side, Mapping) else {} for side in (a, b)]
        for key in dict.fromkeys([*sides[0], *sides[1]]):
            yield from _unequal(f"{path}.{key}", sides[0].get(key), sides[1].get(key))
    elif a != b:
        yield {"key": path, "a": a, "b": b}


def _ratio(a: float, b: float) -> float | None:
    return b / a if a else None


def _lines(data: Mapping[str, Any], width: int | None) -> Iterator[str]:
    room = width or 100
    for label in "ab":
        one = data[label]
        yield from wrapped(f"{label.upper()} {subject(one)}: {headline(one)}", room, 3)
        yield f"   {outcome(one) or ('nothing was computed' if one['modelled'] else 'no validation')}"
        yield f"   run {one['run']}"
    for warning in data["warnings"]:
        yield from wrapped(f"warning: {warning}", room, 2)
    inside = None if width is None else width - 2
    whose = " of the training" if any(data[side]["evaluation"] for side in "ab") else ""
    tables = [("Time to target", _to_target(data)), (f"Wall clock{whose}", _totals(data)),
              ("Evaluation", _evaluations(data)), ("A step, median", _rows(data["phases"], "phase", "step_median_s")),
              ("A rollout, mean", _rows(data["hops"], "hop", "mean_s"))]
    for title, rows in tables:
        if rows:
            yield from titled(title, grid(("", "A", "B", "difference", "B/A"), rows, "<>>>>", inside))
    if data["described"]:
        yield from _described(data, inside)


def _described(data: Mapping[str, Any], inside: int | None) -> Iterator[str]:
    for title, key in (("Parts", "parts"), ("Settings", "settings"), ("Tasks", "tasks")):
        rows = [(item["key"], _value(item["a"]), _value(item["b"])) for item in data[key]]
        left = len(rows) - _MOST_LINES
        yield from titled(f"{title} that differ" if rows else f"{title}: no difference",
                          grid(("", "A", "B"), rows[:_MOST_LINES], "<<<", inside) if rows else [])
        if left > 0:
            yield f"  and {left} more: see --json"


def _totals(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    found = _rows(data["phases"], "phase", "seconds")
    found.append(_figures("sum", *(data[side]["wall_s"] for side in "ab")))
    return found


def _to_target(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """When it was met and what came outside of that; empty where either run did not meet it."""
    a, b = (data[side] for side in "ab")
    if a["time_to_target_s"] is None or b["time_to_target_s"] is None:
        return []
    found = [_figures("time", a["time_to_target_s"], b["time_to_target_s"])]
    if a["evaluation"] or b["evaluation"]:
        found.append(_figures("after it", *(one["wall_s"] - one["time_to_target_s"] for one in (a, b))))
    more = b["steps"] - a["steps"]
    shown = f"{more:+,}".replace("-", "−") if more else "0"
    return [*found, ("steps", *(str(one["steps"]) for one in (a, b)), shown, "")]


def _evaluations(data: Mapping[str, Any]) -> list[tuple[str, ...]]:
    sides = [data[side]["evaluation"] for side in "ab"]
    if not any(sides):
        return []
    found = _rows(data["evaluation"], "phase", "seconds")
    return [*found, _figures("sum", *(side["wall_s"] if side else None for side in sides))]


def _rows(rows: Sequence[Mapping[str, Any]], key: str, figure: str) -> list[tuple[str, ...]]:
    """Those in which either side takes half a millisecond or more."""
    found = []
    for row in rows:
        a, b = (row[side][figure] if row[side] else None for side in "ab")
        if max(a or 0.0, b or 0.0) >= 0.0005:
            found.append(_figures(name(row[key]), a, b))
    return found


def _figures(title: str, a: float | None, b: float | None) -> tuple[str, ...]:
    if a is None or b is None:
        return title, duration(a), duration(b), "–", "–"
    ratio, more = _ratio(a, b), round(b - a, 6)
    sign = "+" if more > 0 else "−" if more < 0 else ""
    shown = "–" if ratio is None else f"{ratio:.2f}" if ratio < 100 else f"{ratio:,.0f}"
    return title, duration(a), duration(b), sign + duration(abs(more)), shown


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)


