"""A run's history, out of the events of all its attempts.

A run that was interrupted goes on from a checkpoint in another process: an *attempt* that appends to the same journal.
Its first event is ``resumed``; until it goes on with a step, its events have no step and are its set-up. The
*canonical* history is what an uninterrupted run would have recorded: without what an earlier attempt did after the
checkpoint, the resumption and the set-up after it.

A deferred evaluation has a journal of its own; its events follow those of the training, and begin with
``evaluation_started``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .events import Kind
from .values import Event

TIMES = frozenset({"seconds", "durations", "ended_at", "updated_at", "cpu_s", "wall_s", "time_to_target_s", "ledger",
                   "training_sha256", "checkpoints"})
"""Keys of ``data`` that a clock decides."""

CLOCKS = "ledger"
"""The alarm that says that clocks or ledger disagree."""

_NAMES = frozenset({"run", "worker", "provenance_sha256", "seal"})
_ROLLOUTS = (Kind.ROLLOUT, Kind.GROUP)


def divided(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    """The events of the training, and those of the deferred evaluation, which may be none."""
    everything = list(events)
    start = next((number for number, event in enumerate(everything) if event.kind == Kind.EVALUATION_STARTED),
                 len(everything))
    return everything[:start], everything[start:]


def canonical(events: Iterable[Event]) -> list[Event]:
    """The events of one uninterrupted history, in the order of the journals, numbered anew."""
    kept = [event for journal in divided(events) for event in _uninterrupted(journal)]
    return [event if event.seq == seq else replace(event, seq=seq) for seq, event in enumerate(kept)]


def _uninterrupted(events: Iterable[Event]) -> list[Event]:
    kept: list[Event] = []
    setting_up = False
    for event in events:
        if event.kind == Kind.RESUMED:
            before = max(1, event.data["from_seq"])
            kept = [earlier for earlier in kept if earlier.seq < before]
            setting_up = event.data["from_step"] > 0
        elif event.step is not None or not setting_up:
            kept.append(event)
            setting_up = False
    return kept


def timeless(events: Iterable[Event]) -> list[tuple[str, int | None, Mapping[str, Any]]]:
    """Kind, step and data of the canonical history without anything that a clock decides: times, what was said about
    them, the run's name, where it ran, who did a rollout, and the order in which the rollouts between two other events
    ended. Equal for equal seeds of a deterministic profile."""
    found: list[tuple[str, int | None, Mapping[str, Any]]] = []
    block: list[Event] = []
    for event in canonical(events):
        if event.kind in _ROLLOUTS:
            block.append(event)
            continue
        if event.kind == Kind.STALL or (event.kind == Kind.ALARM and event.data["name"] == CLOCKS):
            continue
        found += map(_without_times, sorted(block, key=_place))
        block = []
        found.append(_without_times(event))
    return found + list(map(_without_times, sorted(block, key=_place)))


def settings_of(events: Iterable[Event]) -> Mapping[str, Any]:
    """The resolved profile that the latest attempt runs: the first event's, or that of a forced resumption or of an
    evaluation."""
    found: Mapping[str, Any] = {}
    for event in events:
        if event.kind in (Kind.RUN_STARTED, Kind.RESUMED, Kind.EVALUATION_STARTED):
            found = event.data.get("settings", found)
    return found


def _without_times(event: Event) -> tuple[str, int | None, Mapping[str, Any]]:
    return event.kind, event.step, {key: value for key, value in event.data.items() if key not in TIMES | _NAMES}


def _place(event: Event) -> tuple[Any, ...]:
    data = event.data
    numbers = tuple(map(int, re.findall(r"\d+", data.get("rollout_id", ""))))
    return data.get("purpose", "train"), data["group_id"], event.kind == Kind.GROUP, numbers
