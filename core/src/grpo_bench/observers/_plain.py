"""A run's report as text: what ``grpo-bench report`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._layout import grid, wrapped
from ._record import a_step
from ._text import duration, metric_label, name, taken_back

_MOST_NOTICES = 10
_ENDS = {"target_met": "target met", "target_missed": "target missed"}


def lines(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """The report of a run's record, for ``width`` columns; None: as wide as it gets."""
    yield from _head(record, width)
    yield from _phases(record, width)
    yield from _hops(record, width)
    yield from _validations(record, width)
    yield from _plugins(record, width)
    yield from _processes(record, width)
    yield from _notices(record, width)


def headline(record: Mapping[str, Any]) -> str:
    """How the run ended, in a few words."""
    words = _ENDS.get(record["status"], record["status"])
    steps = f"{record['steps']} step{'' if record['steps'] == 1 else 's'}"
    if record["going_on"]:
        return f"going on, {steps} so far"
    text = f"{words} after {steps}"
    if record["time_to_target_s"] is not None:
        text += f", in {duration(record['time_to_target_s'])}"
    return text


def outcome(record: Mapping[str, Any]) -> str:
    """The metric at the latest validation, against its target; empty where there is no validation."""
    if not record["validations"]:
        return ""
    last, metric = record["validations"][-1], shown_metric(record)
    target = f" against a target of {record['target']:g}" if record["target"] is not None else ""
    return f"{metric_label(metric, last['k'])} {last['metrics'][metric]:.3f} ± {last['standard_error']:.3f}{target}"


def shown_metric(record: Mapping[str, Any]) -> str:
    """The metric that ends the run; where none does, pass_k or accuracy."""
    return record["metric"] or ("pass_k" if record["validations"][0]["k"] > 1 else "accuracy")


def titled(title: str, table: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in table)]


def _head(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    room = width or 100
    yield from wrapped(f"{record['profile']}, seed {record['seed']}: {headline(record)}", room, 2)
    if words := outcome(record):
        yield from wrapped(words, room, 2)
    yield f"run {record['run']}"
    if not record["scored"]:
        yield from wrapped("not scored: " + "; ".join(record["unscored"]), room, 2)


def _phases(record: Mapping[str, Any], width: int | None) -> list[str]:
    rows = [(name(item["phase"]), duration(item["seconds"]), f"{item['share']:.1%}", duration(item["step_mean_s"]),
             item["work"]) for item in record["phases"] if item["seconds"] >= 0.0005]
    rows.append(("sum", duration(sum(item["seconds"] for item in record["phases"])), "100%",
                 duration(a_step(record["phases"])), ""))
    table = grid(("phase", "time", "share", "a step", "whose work"), rows, "<>>><", _inside(width))
    missing = record["unaccounted_s"]
    cpu = f", {duration(record['cpu_s'])} of CPU" if record["cpu_s"] is not None else ""
    text = titled(f"Wall clock: {duration(record['wall_s'])}{cpu}", table)
    return text if missing is None else [*text, f"  {duration(abs(missing))} unaccounted for"]


def _hops(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    if not record["hops"]:
        return
    rows = [(name(item["hop"]), duration(item["seconds"]), f"{item['share']:.1%}", duration(item["mean_s"]),
             duration(item["longest_s"]), item["work"]) for item in record["hops"]]
    yield from titled("Inside rollouts, which overlap", grid(
        ("hop", "all", "share", "mean", "longest", "whose work"), rows, "<>>>><", _inside(width)))
    rows = [(item["rollout"], item["task"], f"{item['purpose']} {item['step'] if item['step'] is not None else '–'}",
             name(item["end"]), duration(item["seconds"]), f"{name(item['hop'])} {duration(item['hop_s'])}")
            for item in record["stragglers"]]
    yield from titled("The longest rollouts", grid(
        ("rollout", "task", "step", "end", "time", "most of it"), rows, "<<<<><", _inside(width)))


def _validations(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    found = record["validations"]
    if found:
        metric = shown_metric(record)
        rows = [(str(item["step"]), f"{item['metrics'][metric]:.3f}", f"± {item['standard_error']:.3f}",
                 f"{item['passed']} of {item['tasks']}", duration(item["seconds"]), duration(item["at_s"]))
                for item in found]
        yield from titled("Validations", grid(
            ("step", metric_label(metric, found[0]["k"]), "error", "tasks passed", "took", "at"), rows, ">>>>>>",
            _inside(width)))


def _plugins(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    rows = []
    for item in record["plugins"]:
        failed = ", ".join(f"{count} {name(cause)}" for cause, count in item["failed_rollouts"].items())
        errors = f"{item['errors']} error{'' if item['errors'] == 1 else 's'}" if item["errors"] else ""
        stand_in = " (stand-in)" if item["stand_in"] else ""
        rows.append((item["role"], f"{item['plugin'] or '–'}{stand_in}", duration(item["alone_s"] or None),
                     duration(item["shared_s"] or None), duration(item["rollouts_s"] or None),
                     "; ".join(filter(None, (failed, errors))) or "none"))
    yield from titled("Plugins, on the critical path and off it", grid(
        ("role", "plugin", "alone", "shared", "rollouts", "failures"), rows, "<<>>><", _inside(width)))


def _processes(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    if len(record["processes"]) < 2:
        return
    rows = []
    for item in record["processes"]:
        undone = item["undone"]
        rows.append((str(item["attempt"]), str(item["from_step"]), duration(item["seconds"]),
                     taken_back(undone["seconds"], undone["steps"], undone["rollouts"])))
    yield from titled("Attempts", grid(
        ("attempt", "from step", "took", "taken back"), rows, ">>><", _inside(width)))
    for item in record["processes"]:
        for difference in item["forced"]:
            yield from wrapped(f"  attempt {item['attempt']} was forced: {difference}", width or 100, 4)


def _notices(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    merged: dict[tuple[str, str], int] = {}
    for item in record["notices"]:
        key = item["kind"], item["message"]
        merged[key] = merged.get(key, 0) + 1
    if merged:
        yield from ("", "Notices")
    for (kind, text), count in list(merged.items())[:_MOST_NOTICES]:
        times = f" ({count} times)" if count > 1 else ""
        yield from wrapped(f"  {kind}{times}: {text}", width or 100, 4)
    if len(merged) > _MOST_NOTICES:
        yield f"  and {len(merged) - _MOST_NOTICES} more kinds"


def _inside(width: int | None) -> int | None:
    return None if width is None else width - 2
