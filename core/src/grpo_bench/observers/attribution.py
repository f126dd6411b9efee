"""Whose work it is: the roles that a phase, a hop or a failed rollout belongs to, and the plugins in them.

The critical path is in one phase at a time, but several plugins can be at work in it: a refit takes trainer and
generator, a wait for rollouts takes generator, agent and environment. Such time is told as shared, never split by
guesswork. What no plugin does (advantages, the journal, waiting for a place) is the core's. Start-up and shutdown are
everybody's. Inside rollouts, the hop between two replies is the agent's and its sandbox's together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..contract import Event, Kind, Phase, Role
from ..contract.blame import HOPS, to_blame

_ROLLING = (Role.GENERATOR, Role.AGENT, Role.ENVIRONMENT)
_PHASES: Mapping[str, tuple[Role, ...]] = {
    Phase.ROLLOUT: _ROLLING, Phase.VALIDATION: _ROLLING, Phase.DRAIN: _ROLLING,
    Phase.LOG_PROBABILITIES: (Role.TRAINER,), Phase.UPDATE: (Role.TRAINER,), Phase.CHECKPOINT: (Role.TRAINER,),
    Phase.REFIT: (Role.TRAINER, Role.GENERATOR),
}
_EVERYBODY = frozenset({Phase.STARTUP, Phase.SHUTDOWN})


def of_phase(phase: str) -> str:
    """The roles at work in a phase, in words."""
    return "all parts" if phase in _EVERYBODY else _words(_PHASES.get(phase, ()))


def of_hop(hop: str) -> str:
    """The roles at work in a hop, in words."""
    return _words(HOPS.get(hop, ()))


@dataclass(slots=True)
class PluginTime:
    """What one role's plugin took, in seconds, and what failed in it. ``plugin`` is empty where the journal does not
    name it. ``alone_s`` and ``shared_s`` are of the training's critical path, ``evaluation_s`` is its part of that of a
    deferred evaluation, alone or shared, ``rollouts_s`` of all rollouts together."""

    role: str
    plugin: str = ""
    distribution: str = ""
    stand_in: bool = False
    alone_s: float = 0.0
    shared_s: float = 0.0
    evaluation_s: float = 0.0
    rollouts_s: float = 0.0
    failed: Counter[str] = field(default_factory=Counter)
    errors: int = 0


class Failures:
    """Failed rollouts by role and cause, and errors by role, over all attempts."""

    def __init__(self) -> None:
        self.rollouts: dict[str, Counter[str]] = {}
        self.errors: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        if event.kind == Kind.ROLLOUT and event.data["cause"]:
            for role in to_blame(event.data["cause"], event.data["durations"]):
                self.rollouts.setdefault(role, Counter())[event.data["cause"]] += 1
        elif event.kind == Kind.ERROR and event.data.get("role"):
            self.errors[event.data["role"]] += 1


def plugin_times(parts: Mapping[str, Any], phases: Mapping[str, float], evaluation: Mapping[str, float],
                 hops: Mapping[str, float], failures: Failures) -> list[PluginTime]:
    """One row for each part of the run, in the order of the roles; ``parts`` is what RUN_STARTED says of them. Phases
    are those of the training and of the ``evaluation``, hops those of all rollouts."""
    rows = {role.value: _row(role, parts.get(role, {})) for role in Role}
    for phase, seconds in phases.items():
        roles = _PHASES.get(phase, ())
        for role in roles:
            if len(roles) == 1:
                rows[role].alone_s += seconds
            else:
                rows[role].shared_s += seconds
    for phase, seconds in evaluation.items():
        for role in _PHASES.get(phase, ()):
            rows[role].evaluation_s += seconds
    for hop, seconds in hops.items():
        for role in HOPS.get(hop, ()):
            rows[role].rollouts_s += seconds
    for role, row in rows.items():
        row.failed, row.errors = failures.rollouts.get(role, Counter()), failures.errors[role]
    return [row for role, row in rows.items() if role in parts or _says_something(row)]


def _row(role: Role, part: Mapping[str, Any]) -> PluginTime:
    origin = " ".join(str(part[key]) for key in ("distribution", "version") if part.get(key))
    return PluginTime(role.value, str(part.get("name", "")), origin, bool(part.get("stand_in")))


def _says_something(row: PluginTime) -> bool:
    return bool(row.alone_s or row.shared_s or row.evaluation_s or row.rollouts_s or row.failed or row.errors)


def _words(roles: tuple[Role, ...]) -> str:
    return " + ".join(roles) or "core"
