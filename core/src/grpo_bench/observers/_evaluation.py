"""A deferred evaluation as plain data: what came of each checkpoint, and which of the run's time counts.

The time to target ends inside the training, with the update behind the weights that met it. What the training did after
that and the whole evaluation are outside; each second of both journals is in one of the three.
"""

from __future__ import annotations

from typing import Any

from ..contract import Status
from ._journal_view import Attempt
from ._text import counted, duration
from ._view import RunView
from .attribution import of_hop, of_phase
from .ledger import HopLedger, in_order, unaccounted


def evaluation(view: RunView) -> dict[str, Any] | None:
    """None where no evaluation has begun."""
    told = view.summary["evaluation"]
    if told is None or view.evaluation is None:
        return None
    total = sum(told["ledger"].values()) or 1.0
    return {
        **told, "unaccounted_s": unaccounted(told["ledger"], told["wall_s"]),
        "phases": [{"phase": phase, "seconds": seconds, "share": seconds / total, "work": of_phase(phase)}
                   for phase, seconds in told["ledger"].items()],
        "hops": hops(view.evaluation.hops), "processes": [process(item) for item in view.evaluation.attempts],
        "weights": weights(view),
    }


def weights(view: RunView) -> list[dict[str, Any]]:
    """Each checkpoint of the evaluation in order: when the update behind it had ended, how long its evaluation took,
    and whether it met the target, None where it was not evaluated."""
    tally = view.tally
    spent = tally.evaluation.ledger.steps() if tally.evaluation is not None else {}
    found = {item.step: item for item in view.validations}
    return [
        {"step": step, "folder": item["folder"], "updated_s": tally.updated_s.get(step),
         "took_s": sum(spent[step].values()) if step in found and step in spent else None,
         "target_met": found[step].data["target_met"] if step in found else None}
        for item in tally.evaluated.get("checkpoints", ()) for step in [item["step"]]]


def to_evaluate(view: RunView) -> list[int]:
    """The steps whose weights were saved for an evaluation that has not come to its end, and are not evaluated yet. A
    simulation leaves none."""
    if view.modelled or view.summary["status"] in (Status.TARGET_MET, Status.TARGET_MISSED, Status.COMPLETED):
        return []
    saved = [item["step"] for item in view.tally.evaluated.get("checkpoints", ())] or sorted(view.training.checkpoints)
    evaluated = {item.step for item in view.validations}
    return [step for step in saved if step not in evaluated]


def what_counts(view: RunView) -> dict[str, Any] | None:
    """The phases of both journals in seconds, by what part of the run they are in; None where no evaluation has begun.
    The parts are the training until the update that counts, the training after it, and the evaluation; while no target
    is met, training and evaluation."""
    summary, until = view.summary, view.tally.time_to_target_s
    if summary["evaluation"] is None:
        return None
    training, evaluation = summary["ledger"], summary["evaluation"]["ledger"]
    if until is None:
        parts = {"training": training, "evaluation": evaluation}
    else:
        counts = view.tally.ledger.until(view.tally.steps, until)
        after = {phase: max(0.0, seconds - counts.get(phase, 0.0)) for phase, seconds in training.items()}
        parts = {"counts": counts, "after_it": after, "evaluation": evaluation}
    phases = in_order(dict.fromkeys((phase for spent in parts.values() for phase in spent), 0.0))
    return {"title": _title(view), "parts": list(parts),
            "phases": [{"phase": phase, **{part: spent.get(phase, 0.0) for part, spent in parts.items()}}
                       for phase in phases]}


def _title(view: RunView) -> str:
    if (until := view.tally.time_to_target_s) is not None:
        return f"Time to target: {duration(until)}, until the update of step {view.tally.steps} had ended"
    if view.summary["metric"] is None:
        return "Time without a target"
    return "No time to target " + ("yet" if to_evaluate(view) else "since the target was missed")


def hops(ledger: HopLedger) -> list[dict[str, Any]]:
    """Each hop of the rollouts: the time of all, the mean and the longest, and whose work it is."""
    total, count = ledger.seconds or 1.0, max(1, ledger.rollouts)
    return [{"hop": name, "seconds": hop.total, "share": hop.total / total, "mean_s": hop.total / count,
             "longest_s": hop.longest, "work": of_hop(name)} for name, hop in ledger.in_order()]


def process(item: Attempt) -> dict[str, Any]:
    """One attempt."""
    return {"attempt": item.number, "from_step": item.from_step, "seconds": item.seconds, "forced": list(item.forced),
            "undone": {"seconds": item.undone_s, "steps": item.undone_steps, "rollouts": item.undone_rollouts}}


def stage(view: RunView) -> str:
    """How far a deferred evaluation is that has not come to its end; empty where there is none."""
    summary, left = view.summary, to_evaluate(view)
    told, status = summary["evaluation"], summary["status"]
    if status == Status.TRAINED and view.modelled:
        met = view.tally.taken_to_meet
        return f"trained for {counted(summary['steps'], 'step')}, " + (
            f"target assumed met by step {met[0]} in {duration(met[1])}" if met else "to be evaluated later")
    if status == Status.TRAINED:
        return f"trained for {counted(summary['steps'], 'step')}, {counted(len(left), 'checkpoint')} to evaluate"
    if told is None or status not in (Status.INTERRUPTED, Status.FAILED):
        return ""
    how = "goes on after" if view.going_on else f"{status} after"
    return f"evaluation {how} {told['evaluated']} of {counted(told['checkpoints'], 'checkpoint')}"
