"""A run's report as text: what ``grpo-bench report`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..contract import Metric
from ._layout import grid, wrapped
from ._record import a_step
from ._text import assumed, counted, duration, metric_label, name, simulated, taken_back

_MOST_NOTICES = 10
_ENDS = {"target_met": "target met", "target_missed": "target missed"}


def lines(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """The report of a run's record, for ``width`` columns; None: as wide as it gets."""
    evaluation = record["evaluation"]
    yield from _head(record, width)
    yield from _what_counts(record, width)
    yield from _phases(record, width)
    yield from _hops("Inside rollouts, which overlap", record["hops"], width)
    yield from _stragglers(record, width)
    yield from _weights(record, width) if evaluation else _validations(record, width)
    yield from _hops("Inside the evaluation's rollouts", evaluation["hops"] if evaluation else [], width)
    yield from _plugins(record, width)
    yield from _processes("Attempts", record["processes"], width)
    yield from _processes("Attempts at the evaluation", evaluation["processes"] if evaluation else [], width)
    yield from _notices(record, width)


def subject(record: Mapping[str, Any]) -> str:
    """Which run it is, and whether it was one."""
    return f"{'simulation of ' if record.get('modelled') else ''}{record['profile']}, seed {record['seed']}"


def headline(record: Mapping[str, Any]) -> str:
    """How the run ended, in a few words."""
    words, steps = str(_ENDS.get(record["status"], record["status"])), counted(record["steps"], "step")
    words = assumed(words) if record.get("modelled") else words
    if record["stage"]:
        return record["stage"]
    if record["going_on"]:
        return f"going on, {steps} so far"
    text = f"{words} after {steps}"
    if record["time_to_target_s"] is not None:
        text += f", in {duration(record['time_to_target_s'])}"
    return text


def outcome(record: Mapping[str, Any]) -> str:
    """The metric at the latest validation, against its target; empty where there is no validation that found it out."""
    if not record["validations"] or record.get("modelled"):
        return ""
    last, metric = record["validations"][-1], shown_metric(record)
    target = f" against a target of {record['target']:g}" if record["target"] is not None else ""
    return f"{metric_label(metric, last['k'])} {last['metrics'][metric]:.3f} ± {last['standard_error']:.3f}{target}"


def shown_metric(record: Mapping[str, Any]) -> str:
    """The metric that ends the run; where none does, the usual one of its validations."""
    return record["metric"] or Metric.usual(record["validations"][0]["k"])


def titled(title: str, table: Sequence[str]) -> list[str]:
    return ["", title, *(f"  {line}" for line in table)]


def _head(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    room = width or 100
    yield from wrapped(f"{subject(record)}: {headline(record)}", room, 2)
    if modelled := record.get("modelled"):
        yield from wrapped(simulated(modelled), room, 2)
    if words := outcome(record):
        yield from wrapped(words, room, 2)
    yield f"run {record['run']}"
    if not record["scored"]:
        yield from wrapped("not scored: " + "; ".join(record["unscored"]), room, 2)


def _what_counts(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    if found := record["what_counts"]:
        parts = found["parts"]
        rows = [(name(item["phase"]), *(duration(item[part] or None) for part in parts)) for item in found["phases"]
                if max(item[part] for part in parts) >= 0.0005]
        rows.append(("sum", *(duration(sum(item[part] for item in found["phases"])) for part in parts)))
        head = ("phase", *map(name, parts))
        yield from titled(found["title"], grid(head, rows, "<" + ">" * len(parts), _inside(width)))


def _phases(record: Mapping[str, Any], width: int | None) -> list[str]:
    rows = [(name(item["phase"]), duration(item["seconds"]), f"{item['share']:.1%}", duration(item["step_mean_s"]),
             item["work"]) for item in record["phases"] if item["seconds"] >= 0.0005]
    rows.append(("sum", duration(sum(item["seconds"] for item in record["phases"])), "100%",
                 duration(a_step(record["phases"])), ""))
    table = grid(("phase", "time", "share", "a step", "whose work"), rows, "<>>><", _inside(width))
    missing = record["unaccounted_s"]
    cpu = f", {duration(record['cpu_s'])} of CPU" if record["cpu_s"] is not None else ""
    whose = " of the training" if record["evaluation"] else ""
    text = titled(f"Wall clock{whose}: {duration(record['wall_s'])}{cpu}", table)
    return text if missing is None else [*text, f"  {duration(abs(missing))} unaccounted for"]


def _hops(title: str, hops: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[str]:
    rows = [(name(item["hop"]), duration(item["seconds"]), f"{item['share']:.1%}", duration(item["mean_s"]),
             duration(item["longest_s"]), item["work"]) for item in hops]
    if rows:
        yield from titled(title, grid(("hop", "all", "share", "mean", "longest", "whose work"), rows, "<>>>><",
                                      _inside(width)))


def _stragglers(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    rows = [(item["rollout"], item["task"], f"{item['purpose']} {item['step'] if item['step'] is not None else '–'}",
             name(item["end"]), duration(item["seconds"]), f"{name(item['hop'])} {duration(item['hop_s'])}")
            for item in record["stragglers"]]
    if rows:
        yield from titled("The longest rollouts", grid(
            ("rollout", "task", "step", "end", "time", "most of it"), rows, "<<<<><", _inside(width)))


def _validations(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    found = record["validations"]
    if found and record.get("modelled"):
        rows = [(str(item["step"]), str(item["tasks"]), duration(item["seconds"]), duration(item["at_s"]))
                for item in found]
        yield from titled("Validations", grid(("step", "tasks", "took", "at"), rows, ">>>>", _inside(width)))
    elif found:
        metric = shown_metric(record)
        rows = [(str(item["step"]), f"{item['metrics'][metric]:.3f}", f"± {item['standard_error']:.3f}",
                 f"{item['passed']} of {item['tasks']}", duration(item["seconds"]), duration(item["at_s"]))
                for item in found]
        yield from titled("Validations", grid(
            ("step", metric_label(metric, found[0]["k"]), "error", "tasks passed", "took", "at"), rows, ">>>>>>",
            _inside(width)))


def _weights(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    """What came of each checkpoint, and what its weights would make the time to target."""
    told, found = record["evaluation"], {item["step"]: item for item in record["validations"]}
    metric = shown_metric(record) if found else ""
    rows = []
    for item in told["weights"]:
        updated = duration(item["updated_s"])
        if (at := found.get(item["step"])) is None:
            rows.append((str(item["step"]), "–", "", "–", updated, "–", ""))
        else:
            rows.append((str(item["step"]), f"{at['metrics'][metric]:.3f}", f"± {at['standard_error']:.3f}",
                         f"{at['passed']} of {at['tasks']}", updated, duration(item["took_s"]),
                         "target met" if at["target_met"] else ""))
    label = metric_label(metric, next((item["k"] for item in found.values()), None))
    cpu = f", {duration(told['cpu_s'])} of CPU" if told["cpu_s"] is not None else ""
    title = (f"Evaluation: {told['evaluated']} of {counted(told['checkpoints'], 'checkpoint')}, "
             f"{duration(told['wall_s'])}{cpu}")
    yield from titled(title, grid(("step", label, "error", "tasks passed", "updated at", "took", ""), rows, ">>>>>><",
                                  _inside(width)))
    if told["unaccounted_s"] is not None:
        yield f"  {duration(abs(told['unaccounted_s']))} unaccounted for"


def _plugins(record: Mapping[str, Any], width: int | None) -> Iterator[str]:
    rows, evaluated = [], record["evaluation"] is not None
    for item in record["plugins"]:
        failed = ", ".join(f"{count} {name(cause)}" for cause, count in item["failed_rollouts"].items())
        errors = f"{item['errors']} error{'' if item['errors'] == 1 else 's'}" if item["errors"] else ""
        stand_in = " (stand-in)" if item["stand_in"] else ""
        rows.append((item["role"], f"{item['plugin'] or '–'}{stand_in}", duration(item["alone_s"] or None),
                     duration(item["shared_s"] or None),
                     *([duration(item["evaluation_s"] or None)] if evaluated else []),
                     duration(item["rollouts_s"] or None), "; ".join(filter(None, (failed, errors))) or "none"))
    head = ("role", "plugin", "alone", "shared", *(["evaluation"] if evaluated else []), "rollouts", "failures")
    yield from titled("Plugins, on the critical path and off it", grid(
        head, rows, "<<" + ">" * (len(head) - 3) + "<", _inside(width)))


def _processes(title: str, processes: Sequence[Mapping[str, Any]], width: int | None) -> Iterator[str]:
    if len(processes) < 2:
        return
    rows = []
    for item in processes:
        undone = item["undone"]
        rows.append((str(item["attempt"]), str(item["from_step"]), duration(item["seconds"]),
                     taken_back(undone["seconds"], undone["steps"], undone["rollouts"])))
    yield from titled(title, grid(
        ("attempt", "from step", "took", "taken back"), rows, ">>><", _inside(width)))
    for item in processes:
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
