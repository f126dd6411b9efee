"""Every rollout that trained or validated, as JSON lines: ``trajectories/step-00001.jsonl`` holds the groups of step 1,
``validation-00005.jsonl`` the validation of the weights after step 5, whenever that was.

A line is one rollout: the fields of :class:`Trajectory`, each turn with its token ids as plain lists and its
log-probabilities with the digits that give the same float32 back. When a run is resumed, what its history no longer
holds goes: rollouts of groups that were not finished at the checkpoint, and validations after it. A deferred evaluation
takes nothing back: weights that are evaluated again have their file replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import (
    Cause, End, Event, Failure, FinishReason, Group, GrpoBenchError, Kind, Purpose, RunFacts, RunFolderError,
    TokenSequence, Trajectory, Turn, ValidationReport, canonical, divided, hookimpl,
)
from ..contract.values import Floats
from .durable import sync

FOLDER = "trajectories"


class TrajectoryWriter:
    """The observer that writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER
        self._unsynced: set[str] = set()

    @hookimpl
    def run_started(self, run: RunFacts) -> None:
        self._history = run.history

    @hookimpl
    def event(self, event: Event) -> None:
        if event.kind == Kind.RESUMED and not divided(self._history)[1]:
            self._forget(event, canonical([*self._history, event]))
            self._history = ()

    def sync(self) -> None:
        """Wait until every rollout written is on the disk."""
        for name in self._unsynced:
            sync(self._folder / name)
        if self._unsynced:
            sync(self._folder)
            sync(self._folder.parent)
        self._unsynced.clear()

    @hookimpl
    def group_finished(self, group: Group) -> None:
        with self._writing(f"step-{group.target + 1:05d}.jsonl") as path, path.open("a+b") as file:
            _end_torn_line(file.fileno())
            file.writelines(map(_line, map(_to_json, group.trajectories)))

    @hookimpl
    def validated(self, report: ValidationReport, groups: list[Group]) -> None:
        rollouts = (rollout for group in groups for rollout in group.trajectories)
        with self._writing(f"validation-{report.step:05d}.jsonl") as path:
            _replace(path, map(_to_json, rollouts))

    @contextmanager
    def _writing(self, name: str) -> Iterator[Path]:
        try:
            self._folder.mkdir(exist_ok=True)
            yield self._folder / name
            self._unsynced.add(name)
        except OSError as error:
            raise GrpoBenchError(f"cannot write {self._folder / name}: {error.strerror}",
                                 hint="make room or restore access") from error

    def _forget(self, resumed: Event, history: list[Event]) -> None:
        kept = {event.data["group_id"] for event in history if event.kind == Kind.GROUP}
        for file in self._folder.glob("*.jsonl"):
            kind, _, step = file.stem.partition("-")
            if not step.isdigit() or int(step) <= resumed.data["from_step"] > 0:
                continue
            rollouts = [raw for raw in _read(file) if kind == "step" and raw["group_id"] in kept]
            if rollouts:
                _replace(file, rollouts)
            else:
                file.unlink()


def _replace(path: Path, rollouts: Iterable[dict[str, Any]]) -> None:
    """Write a file whole, or leave it as it was."""
    written = path.with_suffix(".writing")
    with written.open("wb") as file:
        file.writelines(map(_line, rollouts))
    sync(written)
    written.rename(path)


def read_trajectories(path: Path) -> list[Trajectory]:
    """The rollouts of one such file, in the order they ended; a line that a dying writer left torn is passed over."""
    return [_from_json(raw) for raw in _read(path)]


def _read(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror}") from error
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _line(rollout: dict[str, Any]) -> bytes:
    return json.dumps(rollout, separators=(",", ":")).encode() + b"\n"


def _to_json(rollout: Trajectory) -> dict[str, Any]:
    failure = rollout.failure
    return {
        "rollout_id": rollout.rollout_id, "group_id": rollout.group_id, "task_id": rollout.task_id,
        "purpose": rollout.purpose.value, "end": rollout.end.value, "reward": rollout.reward, "masked": rollout.masked,
        "failure": failure and {"cause": failure.cause.value, "message": failure.message,
                                "traceback": failure.traceback},
        "durations": dict(rollout.durations), "counters": dict(rollout.counters), "verdict": rollout.verdict,
        "sequences": [[_turn_to_json(turn) for turn in sequence.turns] for sequence in rollout.sequences],
    }


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    return {
        "context_ids": turn.context_ids.tolist(), "sampled_ids": turn.sampled_ids.tolist(),
        "log_probabilities": _numbers(turn.log_probabilities),
        "versions": [list(run) for run in turn.versions], "finish": turn.finish.value,
        "generate_s": turn.generate_s, "environment_s": turn.environment_s,
    }


def _numbers(values: Floats) -> list[float | str]:
    """Each float32 with nine digits, which read back as the same; ``"nan"`` and infinities as text, JSON has none."""
    texts = ("%.9g " * len(values) % tuple(values.tolist())).split()
    return list(map(float, texts)) if np.isfinite(values).all() else [
        float(text) if text.lstrip("-") not in ("nan", "inf") else text for text in texts]


def _from_json(raw: dict[str, Any]) -> Trajectory:
    failure = raw["failure"]
    return Trajectory(
        raw["rollout_id"], raw["group_id"], raw["task_id"], Purpose(raw["purpose"]),
        tuple(TokenSequence(tuple(_turn_from_json(turn) for turn in turns)) for turns in raw["sequences"]),
        End(raw["end"]), raw["reward"],
        failure and Failure(Cause(failure["cause"]), failure["message"], failure["traceback"]),
        raw["masked"], raw["durations"], raw["counters"], raw.get("verdict", ""))


def _turn_from_json(raw: dict[str, Any]) -> Turn:
    return Turn(
        np.array(raw["context_ids"], np.int32), np.array(raw["sampled_ids"], np.int32),
        np.array([float(value) for value in raw["log_probabilities"]], np.float32),
        tuple((count, version) for count, version in raw["versions"]), FinishReason(raw["finish"]),
        raw["generate_s"], raw["environment_s"])


def _end_torn_line(fd: int) -> None:
    """A writer that died may have left half a line: close it, so that it spoils no other."""
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
