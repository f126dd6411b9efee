"""The series of weights that a deferred evaluation goes through: one folder for each step that is due.

A folder ``weights-00018`` is written whole or not at all, as any checkpoint, and is never pruned. It holds what the
trainer saved in HF form and ``weights.json``: run and step, when the update behind the weights had ended, the tensors
that the trainer sends in a refit, in order, the sequences of the last refit's probe and what the trainer said about
them, and seals of its files. The journal has an event for each, with the seal of ``weights.json``. A series is whole
when there is an event and a sound folder for every step that is due.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Doubles, Event, GrpoBenchError, Ids, Kind, RunFolderError, TensorSpec, canonical
from ..contract.codec import from_jsonable
from ..steps import Probe
from ..steps.seals import broken, seal_of
from ..steps.stored import tensor_names
from .checkpoints import TRAINER

FILE = "weights.json"
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """The probe of a refit: its sequences, how many of them stay the same all through a run, the distance of the run's
    first refit (None without ``refit.probe_growth``), and the trainer's log-probabilities of all tokens but the first
    of each sequence [N]; None where trainer and generator could not be compared."""

    sequences: tuple[Ids, ...]
    kept: int
    first: float | None
    answers: Doubles | None


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that are to be evaluated: those after ``step``, whose update had ended at ``updated_at`` (UTC)."""

    step: int
    folder: Path
    updated_at: str

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "folder": self.folder.name, "updated_at": self.updated_at}


def name_of(step: int) -> str:
    """What the folder of a step's weights is called."""
    return f"weights-{step:05d}"


def state_of(step: int, updated_at: str, tensors: Sequence[TensorSpec], probe: Probe, *,
             comparable: bool) -> dict[str, Any]:
    """What is kept beside weights that were just passed on, but for the run and the seals."""
    said = probe.said.trainer if comparable and probe.said is not None else None
    kept = len(probe.kept) if probe.growth is not None else 0
    return {"step": step, "updated_at": updated_at, "tensors": [spec.name for spec in tensors],
            "probe": {"sequences": probe.sequences, "kept": kept, "first": probe.first, "answers": said}}


def check_saved(folder: Path, tensors: Sequence[TensorSpec]) -> None:
    """GrpoBenchError where a trainer's folder lacks what it sends in a refit."""
    lacking = {spec.name for spec in tensors} - tensor_names(folder)
    if lacking:
        raise GrpoBenchError(f"the trainer saved no tensor {min(lacking)}, which it sends in a refit, and lacks "
                             f"{len(lacking)} in all", hint="validation.deferred evaluates what the trainer saves")


def read_weights(weights: Weights) -> tuple[tuple[str, ...], ProbeRecord]:
    """The names of its tensors, in sending order, and its probe."""
    state = _state(weights.folder)
    probe = state["probe"]
    return tuple(state["tensors"]), ProbeRecord(
        tuple(probe["sequences"]), probe["kept"], probe["first"], probe["answers"])


def series_of(history: Sequence[Event], steps: Sequence[int], folder: Path, *, sound: Container[int],
              hint: str) -> list[Weights]:
    """The weights of ``steps`` that ``history`` records and ``folder`` holds; those of the steps ``sound`` have to be
    so. RunFolderError, with ``hint``, names every one that is not."""
    recorded = {event.step: event for event in canonical(history)
                if event.kind == Kind.CHECKPOINT and event.data.get("updated_at") is not None}
    run = history[0].data["run"]
    faults: list[str] = []
    found = []
    for step in steps:
        event = recorded.get(step)
        if event is None:
            faults.append(f"{folder / name_of(step)} is not in the journal")
            continue
        weights = Weights(step, folder / event.data["folder"], event.data["updated_at"])
        found.append(weights)
        if step in sound:
            faults += _faults(weights, run, event.data.get("seal"))
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        shown = "".join(f"\n    {line}" for line in (*faults[:_SHOWN], *more))
        raise RunFolderError(f"the series of weights is not whole:{shown}", hint=hint)
    return found


def _faults(weights: Weights, run: str, seal: str | None) -> Iterator[str]:
    folder = weights.folder
    if not folder.is_dir():
        yield f"{folder} is missing"
        return
    try:
        state = _state(folder)
    except RunFolderError as error:
        yield error.message
        return
    said = (state["run"], state["step"], state["updated_at"])
    if said != (run, weights.step, weights.updated_at):
        yield (f"{folder} holds the weights of run {said[0]}, step {said[1]}, updated at {said[2]}; the journal says "
               f"run {run}, step {weights.step}, updated at {weights.updated_at}")
    elif seal_of(folder / FILE) != seal:
        yield f"{folder / FILE} is not what was written when the weights were saved"
    elif wrong := _broken(folder / TRAINER, state["seals"]):
        yield f"{folder / TRAINER} is damaged: {wrong}"


def _broken(folder: Path, expected: Mapping[str, str]) -> str:
    try:
        return broken(folder, expected)
    except OSError as error:
        return f"{error.filename} cannot be read: {error.strerror}"


def _state(folder: Path) -> Mapping[str, Any]:
    try:
        state = from_jsonable(json.loads((folder / FILE).read_text("utf-8")))
        if missing := {"run", "step", "updated_at", "tensors", "probe", "seals"} - state.keys():
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        if missing := {"sequences", "kept", "first", "answers"} - state["probe"].keys():
            raise ValueError(f"its probe lacks {', '.join(sorted(missing))}")
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        raise RunFolderError(f"{folder / FILE} is damaged: {error}", hint="restore it from a copy") from error
    return state
