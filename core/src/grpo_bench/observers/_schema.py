"""What has to hold of a run's journals before a view is made of them.

The journal itself guarantees whole lines, JSON and gapless numbers. Here each kind names the keys of its data that some
view reads, with their types; other keys may be there, and are not looked at. Times and what is drawn must be finite and
of a sane size; a loss may be anything, since training does diverge. Text must be text that can be written again. A
journal holds the kinds of its part of the run, the training or its deferred evaluation, and begins with one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..contract import End, Event, Kind, Metric, Purpose, RunFolderError, Status
from ._checks import (
    Check, anything, count, figure, flag, list_of, made_of, map_of, moment, number, one_of, or_none, seconds, shown,
    text,
)
from .journal import EVALUATION, FILE, journal_sha256, read_events

_MISSING = object()
_BEGINNINGS = (Kind.RUN_STARTED, Kind.EVALUATION_STARTED)
_EVALUATING = frozenset({
    Kind.EVALUATION_STARTED, Kind.PHASE, Kind.ROLLOUT, Kind.REFIT, Kind.VALIDATION, Kind.ALARM, Kind.STALL,
    Kind.RESUMED, Kind.ERROR, Kind.RUN_ENDED})


def read_run(folder: Path) -> Iterator[Event]:
    """The events of a run in order: those of its training, then those of its deferred evaluation where that has begun.
    RunFolderError names the line that no view can be made of."""
    yield from read_training(folder)
    training, evaluation = folder / FILE, folder / EVALUATION / FILE
    if not evaluation.is_file():
        return
    sha256 = journal_sha256(training)
    for event in _checked(evaluation, Checker(Kind.EVALUATION_STARTED)):
        if event.seq == 0 and event.data["training_sha256"] != sha256:
            raise RunFolderError(f"{evaluation} evaluates another training than {training} records: that has the "
                                 f"SHA-256 {sha256}, not {event.data['training_sha256']}",
                                 hint=f"restore {training.name} from a copy: nothing writes to it any more")
        yield event


def read_training(folder: Path) -> Iterator[Event]:
    """The events of a run's training alone."""
    return _checked(folder / FILE if folder.is_dir() else folder, Checker())


def _checked(path: Path, checker: Checker) -> Iterator[Event]:
    for event in read_events(path):
        if wrong := checker.check(event):
            raise RunFolderError(f"{path}, line {event.seq + 1}: {wrong}",
                                 hint="the journal was changed, or another version of grpo-bench wrote it")
        yield event


class Checker:
    """Checks the events of one journal, fed in order: of a training, or of an evaluation where it begins with that."""

    def __init__(self, beginning: Kind = Kind.RUN_STARTED) -> None:
        self._beginning = beginning
        self._evaluates = beginning == Kind.EVALUATION_STARTED
        self._now = 0.0
        self._metric: str | None = None
        self._steps: frozenset[int] = frozenset()

    def check(self, event: Event) -> str:
        """What is wrong with an event, or nothing."""
        if wrong := self._head(event):
            return wrong
        for name, required, check in _RULES[event.kind]:
            value = event.data.get(name, _MISSING)
            if value is _MISSING:
                if required:
                    return f"{_a(event.kind)} event should have {name}"
            elif should := check(value):
                return f"{name} of {_a(event.kind)} event should {should}, not {shown(value)}"
        return self._across(event)

    def _head(self, event: Event) -> str:
        kind: object = event.kind
        if not isinstance(kind, str) or kind not in _RULES:
            return f"{shown(kind)} is no kind of event that this version knows"
        if not isinstance(event.data, Mapping):
            return f"data of {_a(kind)} event should be an object, not {shown(event.data)}"
        for name, value, check in (("at", event.at, moment), ("elapsed_s", event.elapsed_s, seconds),
                                   ("step", event.step, or_none(count))):
            if should := check(value):
                return f"{name} should {should}, not {shown(value)}"
        return ""

    def _across(self, event: Event) -> str:
        """What a single event cannot tell: the first says what the journal is of, time does not go back within an
        attempt, and a validation has the metric that the run is about."""
        if (event.seq == 0) != (event.kind in _BEGINNINGS) or (event.seq == 0 and event.kind != self._beginning):
            part = "an evaluation" if self._evaluates else "a run"
            return f"{part} begins with one {self._beginning} event, and only with that; this is {event.kind}"
        if self._evaluates and event.kind not in _EVALUATING:
            return f"an evaluation has no {event.kind} event"
        if event.kind != Kind.RESUMED and event.elapsed_s < self._now:
            return f"elapsed_s goes back from {self._now} to {event.elapsed_s}"
        self._now = event.elapsed_s
        if event.kind in _BEGINNINGS:
            return self._begin(event.data)
        if event.kind == Kind.VALIDATION:
            return self._validation(event)
        if event.kind == Kind.STEP and event.step is None:
            return "a step event should have a step"
        return ""

    def _begin(self, data: Mapping[str, Any]) -> str:
        self._metric = data["metric"]
        steps = [checkpoint["step"] for checkpoint in data["checkpoints"]] if self._evaluates else []
        self._steps = frozenset(steps)
        return "" if steps == sorted(self._steps) else "checkpoints should be in the order of their steps"

    def _validation(self, event: Event) -> str:
        k = event.data["k"]
        needed = [Metric.ACCURACY, self._metric or Metric.usual(k), Metric.usual(k)]
        if missing := [metric for metric in needed if metric not in event.data["metrics"]]:
            return f"metrics of a validation event should have {missing[0]}"
        if self._evaluates and event.step not in self._steps:
            return f"a validation of step {event.step}, of which the evaluation has no checkpoint"
        return ""


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeu' else 'a'} {kind}"


_OBJECT = map_of(anything)
_RANKS = map_of(list_of(count))
_LAYOUT = made_of({
    "hosts": list_of(made_of({"name": text, "domain": text, "ranks": _RANKS, "units": _RANKS, "spare": flag})),
    "units": map_of(made_of({"kind": text, "count": count, "size": count})),
    "crossings": list_of(made_of({"role": text, "kind": text, "number": count, "ranks": list_of(count),
                                  "domains": list_of(text)}))})
_METRIC = or_none(one_of(Metric))
_KINDS: dict[str, dict[str, Check]] = {  # a key with a question mark may be absent
    Kind.RUN_STARTED: {
        "run": text, "profile": text, "seed": count, "target": or_none(figure), "metric": _METRIC,
        "max_steps": count, "prompts_per_step": count, "generations_per_prompt": count, "scored": flag,
        "settings?": _OBJECT, "parts?": map_of(_OBJECT), "tasks?": _OBJECT, "placements?": map_of(_OBJECT),
        "layout?": _LAYOUT, "unscored?": list_of(text), "observers?": list_of(_OBJECT), "provenance_sha256?": text,
        "modelled?": text, "passes_at?": or_none(count)},
    Kind.PHASE: {"phase": text},
    Kind.ROLLOUT: {
        "rollout_id": text, "group_id": count, "task_id": text, "purpose": one_of(Purpose), "end": one_of(End),
        "cause": or_none(text), "message": or_none(text), "reward": or_none(figure), "turns": count,
        "sampled_tokens": count, "durations": map_of(seconds), "worker?": or_none(count), "attempt?": count,
        "counters?": map_of(count)},
    Kind.GROUP: {"group_id": count, "target": count},
    Kind.BATCH: {
        "rollouts": count, "reward_mean": or_none(figure), "masked?": map_of(count),
        "advantage_zero_groups?": count},
    Kind.UPDATE: {"loss": number, "grad_norm": number},
    Kind.REFIT: {"version": count, "seconds": seconds, "probe_difference": or_none(number)},
    Kind.VALIDATION: {
        "k": count, "tasks": count, "passed": count, "metrics": map_of(figure), "standard_error": figure,
        "seconds": seconds, "target_met": flag},
    Kind.CHECKPOINT: {"folder": text, "what": text, "seconds": seconds, "updated_at?": moment},
    Kind.ALARM: {"name": text, "message": text},
    Kind.STALL: {"message?": text, "seconds?": seconds, "waiting?": anything},
    Kind.STEP: {"seconds": seconds, "reward_mean": or_none(figure), "rollouts": count, "sampled_tokens": count},
    Kind.RESUMED: {
        "from_step": count, "from_seq": count, "attempt": count, "forced": list_of(text), "settings?": _OBJECT,
        "layout?": _LAYOUT, "provenance_sha256?": text},
    Kind.EVALUATION_STARTED: {
        "run": text, "training_sha256": text, "metric": _METRIC, "target": or_none(figure), "k": count,
        "checkpoints": list_of(made_of({"step": count, "folder": text, "updated_at": moment})), "scored": flag,
        "unscored": list_of(text), "forced?": list_of(text), "settings?": _OBJECT, "parts?": map_of(_OBJECT),
        "observers?": list_of(_OBJECT), "provenance_sha256?": text},
    Kind.ERROR: {
        "message": text, "hint?": or_none(text), "plugin?": or_none(text), "role?": or_none(text),
        "task?": or_none(text)},
    Kind.RUN_ENDED: {
        "status": one_of(Status), "metric": _METRIC, "value": or_none(figure), "target": or_none(figure),
        "steps": count, "time_to_target_s": or_none(seconds), "wall_s": seconds, "cpu_s": or_none(seconds),
        "weights_sha256": or_none(text), "ledger": map_of(seconds)},
}
_RULES = {kind: [(key.rstrip("?"), not key.endswith("?"), check) for key, check in keys.items()]
          for kind, keys in _KINDS.items()}
"""For each kind: (key of its data, whether it must be there, what it must be)."""
