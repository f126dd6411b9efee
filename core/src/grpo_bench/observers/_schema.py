"""What has to hold of a journal's events before a view is made of them.

The journal itself guarantees whole lines, JSON and gapless numbers. Here each kind names the keys of its data that some
view reads, with their types; other keys may be there, and are not looked at. Times and what is drawn must be finite and
of a sane size; a loss may be anything, since training does diverge. Text must be text that can be written again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..contract import End, Event, Kind, Purpose, RunFolderError, Status
from .journal import FILE, read_events

Check = Callable[[Any], str]
"""Says what a value should be, or nothing where it is that."""

_MOST_SECONDS, _MOST, _LARGEST, _DEEPEST = 1e10, 2**53, 1e15, 32
_MISSING = object()


def read_run(folder: Path) -> Iterator[Event]:
    """The events of a run folder's journal, in order; RunFolderError names the line that no view can be made of."""
    path = folder / FILE if folder.is_dir() else folder
    checker = Checker()
    for event in read_events(folder):
        if wrong := checker.check(event):
            raise RunFolderError(f"{path}, line {event.seq + 1}: {wrong}",
                                 hint="the journal was changed, or another version of grpo-bench wrote it")
        yield event


class Checker:
    """Checks the events of one journal, fed in order."""

    def __init__(self) -> None:
        self._now = 0.0
        self._metric: str | None = None

    def check(self, event: Event) -> str:
        """What is wrong with an event, or nothing."""
        if wrong := self._head(event):
            return wrong
        for name, required, check in _RULES[event.kind]:
            value = event.data.get(name, _MISSING)
            if value is _MISSING:
                if required:
                    return f"a {event.kind} event should have {name}"
            elif should := check(value):
                return f"{name} of a {event.kind} event should {should}, not {_shown(value)}"
        return self._across(event)

    def _head(self, event: Event) -> str:
        kind: object = event.kind
        if not isinstance(kind, str) or kind not in _RULES:
            return f"{_shown(kind)} is no kind of event that this version knows"
        if not isinstance(event.data, Mapping):
            return f"data of a {kind} event should be an object, not {_shown(event.data)}"
        for name, value, check in (("at", event.at, _text), ("elapsed_s", event.elapsed_s, _seconds),
                                   ("step", event.step, _or_none(_count))):
            if should := check(value):
                return f"{name} should {should}, not {_shown(value)}"
        return ""

    def _across(self, event: Event) -> str:
        """What a single event cannot tell: the first is RUN_STARTED, time does not go back within an attempt, and a
        validation has the metric that the run is about."""
        if (event.seq == 0) != (event.kind == Kind.RUN_STARTED):
            return f"a run begins with one run_started event, and only with that; this is {event.kind}"
        if event.kind != Kind.RESUMED and event.elapsed_s < self._now:
            return f"elapsed_s goes back from {self._now} to {event.elapsed_s}"
        self._now = event.elapsed_s
        if event.kind == Kind.RUN_STARTED:
            self._metric = event.data["metric"]
        if event.kind == Kind.VALIDATION:
            needed = ["accuracy", self._metric or "accuracy", "pass_k" if event.data["k"] > 1 else "accuracy"]
            if missing := [metric for metric in needed if metric not in event.data["metrics"]]:
                return f"metrics of a validation event should have {missing[0]}"
        if event.kind == Kind.STEP and event.step is None:
            return "a step event should have a step"
        return ""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        return "be text"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "be text without lone surrogates"
    return ""


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "be true or false"


def _whole(value: Any) -> str:
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST
    return "" if fits else "be an integer below 2^53"


def _count(value: Any) -> str:
    return "" if not _whole(value) and value >= 0 else "be a count"


def _seconds(value: Any) -> str:
    fits = _is_number(value) and 0 <= value <= _MOST_SECONDS
    return "" if fits else "be seconds: a finite number, 0 or more"


def _figure(value: Any) -> str:
    fits = _is_number(value) and abs(value) <= _LARGEST
    return "" if fits else f"be a number between -{_LARGEST:g} and {_LARGEST:g}"


def _number(value: Any) -> str:
    """Any at all: NaN and infinity too."""
    return "" if isinstance(value, float) or not _whole(value) else "be a number"


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else not _whole(value)


def _anything(value: Any, depth: int = 0) -> str:
    """Free data: its texts must be writable, and nothing in it something that JSON has no word for."""
    if isinstance(value, str):
        return _text(value)
    if depth > _DEEPEST:
        return "be less deeply nested"
    if isinstance(value, Mapping):
        inner = (*value.keys(), *value.values())
        return next((wrong for item in inner if (wrong := _anything(item, depth + 1))), "")
    if isinstance(value, list | tuple):
        return next((wrong for item in value if (wrong := _anything(item, depth + 1))), "")
    return "" if value is None or isinstance(value, int | float) else "be plain data"


def _or_none(check: Check) -> Check:
    return lambda value: "" if value is None or not (should := check(value)) else f"{should}, or null"


def _one_of(choices: type) -> Check:
    known = frozenset(str(choice) for choice in choices)  # type: ignore[attr-defined]
    return lambda value: "" if isinstance(value, str) and value in known else f"be one of {', '.join(sorted(known))}"


def _map_of(check: Check) -> Check:
    def each(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "be an object"
        for key, item in value.items():
            if should := _text(key) or check(item):
                return f"have under {_shown(key)} what should {should}"
        return ""
    return each


def _list_of(check: Check) -> Check:
    def each(value: Any) -> str:
        if not isinstance(value, list | tuple):
            return "be a list"
        return next((f"hold items that {should}" for item in value if (should := check(item))), "")
    return each


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_OBJECT = _map_of(_anything)
_KINDS: dict[str, dict[str, Check]] = {  # a key with a question mark may be absent
    Kind.RUN_STARTED: {
        "run": _text, "profile": _text, "seed": _count, "target": _or_none(_figure), "metric": _or_none(_text),
        "max_steps": _count, "prompts_per_step": _count, "generations_per_prompt": _count, "scored": _flag,
        "settings?": _OBJECT, "parts?": _map_of(_OBJECT), "tasks?": _OBJECT, "placements?": _map_of(_OBJECT),
        "unscored?": _list_of(_text)},
    Kind.PHASE: {"phase": _text},
    Kind.ROLLOUT: {
        "rollout_id": _text, "group_id": _count, "task_id": _text, "purpose": _one_of(Purpose), "end": _one_of(End),
        "cause": _or_none(_text), "message": _or_none(_text), "reward": _or_none(_figure), "turns": _count,
        "sampled_tokens": _count, "durations": _map_of(_seconds), "worker?": _or_none(_count), "attempt?": _count,
        "counters?": _map_of(_count)},
    Kind.GROUP: {"group_id": _count, "target": _count},
    Kind.BATCH: {
        "rollouts": _count, "reward_mean": _or_none(_figure), "masked?": _map_of(_count),
        "advantage_zero_groups?": _count},
    Kind.UPDATE: {"loss": _number, "grad_norm": _number},
    Kind.REFIT: {"version": _count, "seconds": _seconds, "probe_difference": _or_none(_number)},
    Kind.VALIDATION: {
        "k": _count, "tasks": _count, "passed": _count, "metrics": _map_of(_figure), "standard_error": _figure,
        "seconds": _seconds, "target_met": _flag},
    Kind.CHECKPOINT: {"folder": _text, "what": _text, "seconds": _seconds},
    Kind.ALARM: {"name": _text, "message": _text},
    Kind.STALL: {"message?": _text, "seconds?": _seconds, "waiting?": _anything},
    Kind.STEP: {"seconds": _seconds, "reward_mean": _or_none(_figure), "rollouts": _count, "sampled_tokens": _count},
    Kind.RESUMED: {
        "from_step": _count, "from_seq": _count, "attempt": _count, "forced": _list_of(_text), "settings?": _OBJECT},
    Kind.ERROR: {
        "message": _text, "hint?": _or_none(_text), "plugin?": _or_none(_text), "role?": _or_none(_text),
        "task?": _or_none(_text)},
    Kind.RUN_ENDED: {
        "status": _one_of(Status), "metric": _or_none(_text), "value": _or_none(_figure), "target": _or_none(_figure),
        "steps": _count, "time_to_target_s": _or_none(_seconds), "wall_s": _seconds, "cpu_s": _or_none(_seconds),
        "weights_sha256": _or_none(_text), "ledger": _map_of(_seconds)},
}
_RULES = {kind: [(key.rstrip("?"), not key.endswith("?"), check) for key, check in keys.items()]
          for kind, keys in _KINDS.items()}
"""For each kind: (key of its data, whether it must be there, what it must be)."""
