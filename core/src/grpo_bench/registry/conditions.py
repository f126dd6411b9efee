"""How an installed plugin is doing, found out without letting it harm whoever asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..contract import PlanError
from .installed import Installed
from .loading import check_requirements, checked, imported
from .probe import probe


class State(StrEnum):
    """What can be said of a plugin before it does anything."""

    OK = "ok"
    NOT_INSTALLED = "not installed"
    """It is there, but something that it requires is not, or in a version that it does not support."""
    IMPORT_FAILED = "import failed"
    API_MISMATCH = "API mismatch"
    """Its entry point leads to no descriptor, or to one of another API version, role or name."""
    DUPLICATE = "duplicate"
    DISABLED = "disabled"


@dataclass(frozen=True)
class Condition:
    """A state and, where it is not ok, the reason in one line."""

    state: State
    reason: str = ""


def condition(plugin: Installed, twice: Mapping[tuple[str, str], tuple[str, ...]], disabled: Mapping[str, str],
              timeout_s: float) -> Condition:
    """The condition of a plugin. ``twice`` and ``disabled`` are what :func:`duplicates` and :func:`disabled_plugins`
    gave; its import has ``timeout_s`` seconds, in a copy of this process."""
    if owners := twice.get((plugin.role, plugin.name)):
        return Condition(State.DUPLICATE, f"comes from {', '.join(owners)}: uninstall all but one")
    if file := disabled.get(f"{plugin.role}:{plugin.name}"):
        return Condition(State.DISABLED, f"by {file}")
    return imported_condition(plugin, timeout_s)


def imported_condition(plugin: Installed, timeout_s: float) -> Condition:
    """The condition that the import leaves it in."""
    found = probe(lambda say: say(json.dumps(_look(plugin))), timeout_s)
    if not found.lines:
        return Condition(State.IMPORT_FAILED, f"its import {found.fate}")
    state, reason = json.loads(found.lines[0])
    return Condition(State(state), reason)


def _look(plugin: Installed) -> tuple[State, str]:
    try:
        descriptor = imported(plugin)
    except PlanError as error:
        return State.IMPORT_FAILED, error.message
    try:
        known = checked(plugin, descriptor)
    except PlanError as error:
        return State.API_MISMATCH, error.message
    try:
        check_requirements(known)
    except PlanError as error:
        return State.NOT_INSTALLED, error.message
    return State.OK, ""
