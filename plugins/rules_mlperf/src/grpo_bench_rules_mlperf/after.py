"""A run that is over, held against the rules by its events alone.

A run is a training, whose journal tells of steps and of weights saved after some of them, and an evaluation of these
weights afterwards. The canonical history of each is judged: what an interrupted evaluation did twice counts once. A
training counts in one attempt only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_bench.contract import Event, Finding, Kind, canonical, divided

from .convergence import outcome
from .holding import findings, shown
from .rules import Division, Rules
from .validated import attempts, validation

_NEAR = 1e-9
_MAX_SEED = 2**32 - 1


def judged(rules: Rules, division: Division, events: Sequence[Event]) -> Iterator[Finding]:
    """A verdict on everything that the rules say about what a run does."""
    training, evaluation = divided(events)
    started, trained, evaluated = training[0].data, canonical(training), canonical(evaluation)
    batch = started["prompts_per_step"] * started["generations_per_prompt"]
    updates = _of(Kind.UPDATE, trained)
    saved = [event for event in _of(Kind.CHECKPOINT, trained) if "updated_at" in event.data]
    validations = _of(Kind.VALIDATION, evaluated)
    yield _seed(started.get("seed"))
    yield _attempts(training)
    yield _whole(trained, batch)
    yield _samples(_of(Kind.BATCH, trained))
    if division is Division.CLOSED:
        yield _learning_rates(rules, updates, batch)
    yield _deferred(trained, evaluated)
    yield _weights(rules, saved, updates, batch)
    yield _evaluated(saved, evaluated)
    yield _told(rules, division, batch, started)
    yield _settings(rules, division, batch, training, evaluation)
    yield _schedule(rules, validations, batch)
    for event in validations:
        yield validation(rules, event, evaluated)
    yield attempts(rules, evaluation, validations)
    yield (target := _target(rules, validations))
    if target.ok and division is Division.CLOSED:
        yield outcome(rules, batch, validations[-1].step or 0)


def _of(kind: Kind, events: Sequence[Event]) -> list[Event]:
    return [event for event in events if event.kind == kind]


def _seed(seed: object) -> Finding:
    ok = type(seed) is int and 0 <= seed <= _MAX_SEED
    return Finding("seed", ok, f"{seed}" if ok else f"{seed!r}; should be an integer from 0 to {_MAX_SEED}")


def _attempts(training: Sequence[Event]) -> Finding:
    count = 1 + len(_of(Kind.RESUMED, training))
    return Finding("training attempts", count == 1, "one" if count == 1 else
                   f"{count}; what training did before it was interrupted would be left out of its time")


def _whole(trained: Sequence[Event], batch: int) -> Finding:
    """Each step has one batch, of all its rollouts, one update and one end."""
    last = max((event.step or 0 for event in trained if event.kind == Kind.UPDATE), default=0)
    odd = [step for step in range(1, last + 1) for kind in (Kind.BATCH, Kind.UPDATE, Kind.STEP)
           if [event.step for event in _of(kind, trained)].count(step) != 1]
    odd += [event.step or 0 for event in _of(Kind.BATCH, trained) if event.data["rollouts"] != batch]
    return Finding("training steps", not odd, f"{last}, each of {batch} rollouts" if not odd else
                   f"step {_listed(sorted(set(odd)))} has not one batch of {batch} rollouts, one update and one end")


def _samples(batches: Sequence[Event]) -> Finding:
    lost = {event.step or 0: count for event in batches if (count := sum(event.data.get("not_samples", {}).values()))}
    return Finding("training rollouts", not lost, "every one came to a normal end" if not lost else
                   f"{sum(lost.values())} came to none, in step {_listed(list(lost))}; each has to be started again "
                   "until it does")


def _learning_rates(rules: Rules, updates: Sequence[Event], batch: int) -> Finding:
    wanted = rules.learning_rate(batch)
    other = sorted({rate for event in updates
                    if not math.isclose(rate := event.data["learning_rate"], wanted, rel_tol=0, abs_tol=_NEAR)})
    return Finding("learning rate", not other, f"{wanted:.10g} in every update" if not other else
                   f"updates ran at {_listed(other)}; the rules want {wanted:.10g}")


def _deferred(trained: Sequence[Event], evaluated: Sequence[Event]) -> Finding:
    inline = [event.step or 0 for event in _of(Kind.VALIDATION, trained)]
    if inline:
        message = f"validated while training, after step {_listed(inline)}; the rules want weights saved for later"
    elif not evaluated:
        message = "nothing has been evaluated yet: `grpo-bench eval RUN` does it"
    else:
        return Finding("deferred evaluation", True, "all of it after training")
    return Finding("deferred evaluation", False, message)


def _weights(rules: Rules, saved: Sequence[Event], updates: Sequence[Event], batch: int) -> Finding:
    """Weights of every step from the first validation on until training ended, each with the end of its update."""
    ended = {event.step: event.data["ended_at"] for event in updates}
    first, last = rules.first_validation(batch), max((event.step or 0 for event in updates), default=0)
    steps = [event.step or 0 for event in saved]
    wrong = [event.step or 0 for event in saved if event.data["updated_at"] != ended.get(event.step)]
    wanted = list(range(first, last + 1))
    if steps != wanted or not steps:
        rest = f"training ended with step {last}, and the rules want all from {first} on"
        return Finding("saved weights", False, f"of step {_listed(steps)}; {rest}")
    return Finding("saved weights", not wrong, f"the time kept for step {_listed(wrong)} is not that of its update"
                   if wrong else f"of steps {first} to {last}, each with the time of its update")


def _evaluated(saved: Sequence[Event], evaluated: Sequence[Event]) -> Finding:
    """What the evaluation set out to do is what training left."""
    told = [item for event in _of(Kind.EVALUATION_STARTED, evaluated) for item in event.data["checkpoints"]]
    left = {event.step or 0: event.data["updated_at"] for event in saved}
    other = [item["step"] for item in told if left.get(item["step"]) != item["updated_at"]]
    lost = sorted(left.keys() - {item["step"] for item in told})
    wrong = [f"{words} {_listed(steps)}" for words, steps in (
        ("training saved no such weights as evaluated for step", other), ("left out: step", lost)) if steps]
    return Finding("evaluated weights", not wrong, "; ".join(wrong) or "the evaluation has all that training saved")


def broken(rules: Rules, division: Division, batch: int, begun: Mapping[str, Any]) -> dict[str, str]:
    """By rule, what the settings of a first event break. What no part says of itself there is not known."""
    facts = {role: part.get("facts", {}) for role, part in begun.get("parts", {}).items()}
    found = findings(rules, batch, division, {
        **begun["settings"], "facts": facts, "missing": ["what parts say of themselves"]})
    return {finding.rule: finding.message for finding in found if not finding.ok and not finding.unknown}


def _told(rules: Rules, division: Division, batch: int, started: Mapping[str, Any]) -> Finding:
    """Whatever the training's settings break is a reason why it cannot count, and its first event says so."""
    wrong = [f"{rule} {message}" for rule, message in broken(rules, division, batch, started).items()
             if f"rule {rule}: {message}" not in started["unscored"]]
    return Finding("settings", not wrong, "; ".join(wrong) or "the rules that they break are known")


def _settings(rules: Rules, division: Division, batch: int, training: Sequence[Event],
              evaluation: Sequence[Event]) -> Finding:
    """An evaluation may run elsewhere and otherwise than the training, in no way that a rule forbids."""
    known = broken(rules, division, batch, training[0].data)
    wrong = {rule: f"{rule} {message}" for event in evaluation if "settings" in event.data
             for rule, message in broken(rules, division, batch, event.data).items() if known.get(rule) != message}
    return Finding("evaluation settings", not wrong, "; ".join(wrong.values()) or "they break no rule of their own")


def _schedule(rules: Rules, validations: Sequence[Event], batch: int) -> Finding:
    first = rules.first_validation(batch)
    steps = [event.step or 0 for event in validations]
    ok = bool(steps) and steps == list(range(first, first + len(steps)))
    return Finding("validation schedule", ok, (f"after step {_listed(steps)}" if steps else "no validation") + (
        "" if ok else f"; the rules want one after every step from {first} on"))


def _target(rules: Rules, validations: Sequence[Event]) -> Finding:
    """Decided on integers, whatever the run thought at the time."""
    met = [event.data["passed"] >= rules.needed(event.data["tasks"]) for event in validations]
    ok = True in met and met.index(True) == len(met) - 1
    needed = f"{rules.needed(rules.validation_tasks)} of {rules.validation_tasks} tasks"
    return Finding("target", ok, f"{needed} or more solved after the last validation, and not before" if ok else
                   f"no validation had {needed} solved" if True not in met else
                   "validations went on after the one that met it")


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(shown, values)) or "none"
