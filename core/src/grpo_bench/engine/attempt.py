"""What an attempt at a training or an evaluation begins with, and what it comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from ..contract import Event, GrpoBenchError, Kind, Status
from .rollouts import RolloutPool

Display = Literal["progress", "quiet"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: its status, the summary that ``--json`` prints, and the error of one that failed;
    ``lost_trainer`` says that it failed since the trainer lost a process."""

    status: Status
    summary: dict[str, Any]
    folder: Path
    error: GrpoBenchError | None = None
    lost_trainer: bool = False


@dataclass(frozen=True, slots=True)
class Attempt:
    """Where an attempt stands. ``run`` is the run's name and ``folder`` its place; ``records`` is the folder of the
    journal that it writes, which has ``written`` events so far. ``history`` is all that was recorded before, in
    whatever journal. ``software`` is the number under which what it is made of has still to be kept, None where it
    is."""

    run: str
    folder: Path
    records: Path
    written: int
    history: Sequence[Event]
    software: int | None


@dataclass(frozen=True, slots=True)
class Opening:
    """The first event of an attempt, whether the run can still be scored, and what a person should know of it: the
    name and the message of an alarm."""

    kind: Kind
    data: dict[str, Any]
    scored: bool
    alarm: tuple[str, str] | None = None


class Busy(Protocol):
    """What an attempt is busy with once its parts have started."""

    @property
    def pool(self) -> RolloutPool: ...

    def missing(self) -> list[int]:
        """The prompts that are waited for."""
        ...
