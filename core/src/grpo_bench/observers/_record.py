"""A run's figures as plain data: what ``report --json`` prints, and what the text and the comparison are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..contract import Event, Kind
from ._evaluation import evaluation, hops, process, stage, to_evaluate, what_counts
from ._text import duration
from ._view import RunView
from .attribution import of_hop, of_phase
from .ledger import unaccounted

_RESULTS = ("passed", "metrics", "standard_error")
"""What a validation found out."""


def record(view: RunView) -> dict[str, Any]:
    """Seconds are floats. ``share`` is of the wall clock for phases, of the time of all rollouts for hops. Phases, hops
    and processes are the training's; those of a deferred evaluation stand under ``evaluation``. A simulation has no
    results of validations."""
    summary, started = view.summary, view.started
    return {
        **summary, "profile": started.get("profile"), "seed": started.get("seed"), "scored": view.tally.scored,
        "going_on": view.going_on, "stage": stage(view), "to_evaluate": to_evaluate(view),
        "evaluation": evaluation(view), "what_counts": what_counts(view),
        "unscored": unscored(view), "phases": phases(view),
        "unaccounted_s": unaccounted(summary["ledger"], summary["wall_s"]), "hops": hops(view.hops),
        "stragglers": [
            {"rollout": item.rollout_id, "task": item.task_id, "purpose": item.purpose, "step": item.step,
             "end": item.end, "seconds": item.seconds, "hop": item.hop, "hop_s": item.hop_seconds,
             "work": of_hop(item.hop)} for item in view.stragglers],
        "validations": [
            {"step": item.step, "at_s": item.elapsed_s,
             "counts_s": view.tally.updated_s.get(item.step, item.elapsed_s), **{key: item.data[key] for key in (
                 "k", "tasks", *(() if view.modelled else _RESULTS), "seconds", "target_met")}}
            for item in view.validations],
        "plugins": [
            {"role": item.role, "plugin": item.plugin or None, "distribution": item.distribution or None,
             "stand_in": item.stand_in, "alone_s": item.alone_s, "shared_s": item.shared_s,
             "evaluation_s": item.evaluation_s, "rollouts_s": item.rollouts_s,
             "failed_rollouts": dict(item.failed), "errors": item.errors}
            for item in view.plugins],
        "processes": [process(item) for item in view.attempts],
        "counted": {purpose.value: dict(side.counted) for purpose, side in view.rollouts.items()},
        "notices": [{"kind": event.kind, "step": event.step, "elapsed_s": event.elapsed_s, "evaluating": evaluating,
                     "message": message(event)} for event, evaluating in view.notices],
    }


def phases(view: RunView) -> list[dict[str, Any]]:
    """Each phase of the critical path: its time, what it takes of a step (over all steps, and the median of those that
    have it), and whose work it is."""
    spent: Mapping[str, float] = view.summary["ledger"]
    total = sum(spent.values()) or 1.0
    by_phase: dict[str, list[float]] = {}
    for step, found in view.tally.ledger.steps().items():
        for phase, seconds in found.items() if step else ():  # step 0 is before the first
            by_phase.setdefault(phase, []).append(seconds)
    steps = max(1, len(view.steps))
    return [{"phase": phase, "seconds": seconds, "share": seconds / total,
             "step_mean_s": sum(by_phase[phase]) / steps if phase in by_phase else None,
             "step_median_s": median(by_phase[phase]) if phase in by_phase else None,
             "work": of_phase(phase)} for phase, seconds in spent.items()]


def a_step(phases: Sequence[Mapping[str, Any]]) -> float | None:
    """What the phases take of a step together, on average; None where there was no step."""
    found = [item["step_mean_s"] for item in phases if item["step_mean_s"] is not None]
    return sum(found) if found else None


def unscored(view: RunView) -> list[str]:
    """Why the run can be no result; empty where it can."""
    if view.tally.scored:
        return []
    reasons = [*dict.fromkeys([*view.started.get("unscored", ()), *view.tally.evaluated.get("unscored", ())]),
               *(f"forced to go on although {difference}" for difference in view.tally.forced)]
    return reasons or ["its journal says so, without a reason"]


def message(event: Event) -> str:
    """What an alarm, a stall or an error says, in a line."""
    data = event.data
    match event.kind:
        case Kind.STALL if not data.get("message"):
            return f"nothing moved for {duration(data.get('seconds'))}; everybody waited for {data.get('waiting')}"
        case Kind.ERROR:
            where = ", ".join(f"{key} {data[key]}" for key in ("plugin", "role", "task") if data.get(key))
            hint = data.get("hint")
            return data["message"] + (f" [{where}]" if where else "") + (f" ({hint})" if hint else "")
        case _:
            return str(data["message"])


def plain(value: Any) -> Any:
    """The same as what JSON has words for: lists for tuples, None for figures that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
