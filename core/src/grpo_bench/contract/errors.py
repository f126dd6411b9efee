"""What can go wrong.

    GrpoBenchError
    ├── InputError            the user's input is wrong: one message, exit code 2, nothing started
    │   ├── RegistryError     registry.toml, --set, a profile
    │   ├── PlanError         parts that do not fit together
    │   │   └── Missing       what they need is not on this machine
    │   └── RunFolderError    a path that is no run folder, or does not match
    ├── PluginError           a plugin raised, with the boundary it was crossed at
    │   └── WorkerLost        a worker process died
    ├── DeadlineExceeded      a hop took longer than it may
    ├── RefitError            weights did not reach every engine, or arrived changed
    ├── RolloutShareExceeded  more rollouts failed than the profile allows
    ├── BatchError            a batch no step can be made of
    └── Interrupted           the user stopped the run

Every error says what, where, and what to do, and survives pickling and the worker boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where an error crossed from a plugin into the core; None where that coordinate does not apply."""

    plugin: str | None = None
    role: str | None = None
    task: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        parts = [("plugin", self.plugin), ("role", self.role), ("task", self.task), ("step", self.step)]
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


class GrpoBenchError(Exception):
    """Base of all errors raised on purpose. ``hint`` says what to do."""

    def __init__(self, message: str, *, hint: str = "", boundary: Boundary | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.boundary = boundary or Boundary()

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.boundary), self.__dict__

    def __str__(self) -> str:
        where = f" [{self.boundary}]" if str(self.boundary) else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.message}{where}{hint}"


def _rebuild(kind: type[GrpoBenchError], message: str, hint: str, boundary: Boundary) -> GrpoBenchError:
    return kind(message, hint=hint, boundary=boundary)


class InputError(GrpoBenchError):
    """The user's input is wrong."""


class RegistryError(InputError):
    """A registry file, an override or a profile is wrong."""


class PlanError(InputError):
    """Parts of a profile do not fit together."""


class Missing(PlanError):
    """A profile that is valid asks for something that this machine does not have. ``items`` says what, one line each:
    what it is, where it was looked for, what to do. ``facts`` are those that the plugin knows all the same."""

    def __init__(self, message: str, *, items: Sequence[str] = (), facts: Mapping[str, Any] | None = None,
                 hint: str = "", boundary: Boundary | None = None) -> None:
        super().__init__(message, hint=hint, boundary=boundary)
        self.items: tuple[str, ...] = tuple(items) or (message,)
        self.facts: Mapping[str, Any] = dict(facts or {})


class RunFolderError(InputError):
    """A path is no run folder, or not one that this command can use."""


class PluginError(GrpoBenchError):
    """A plugin raised; the cause is chained or, across a worker boundary, given as text in ``remote_traceback``."""

    remote_traceback: str = ""


class WorkerLost(PluginError):
    """A worker process ended while it was needed."""

    def again(self) -> WorkerLost:
        """A copy, so that callers do not share one traceback."""
        copy = WorkerLost(self.message, hint=self.hint, boundary=self.boundary)
        copy.remote_traceback = self.remote_traceback
        return copy


class DeadlineExceeded(GrpoBenchError):
    """A hop took longer than its deadline."""


class RefitError(GrpoBenchError):
    """Weights did not reach every engine, or a check after them failed."""


class RolloutShareExceeded(GrpoBenchError):
    """The share of rollouts that are not samples is above what the profile allows."""


class BatchError(GrpoBenchError):
    """A step cannot be made of this batch."""


class Interrupted(GrpoBenchError):
    """The user stopped the run."""
