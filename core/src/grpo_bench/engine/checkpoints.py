"""Checkpoints: written whole or not at all.

A checkpoint is built under a temporary name, every file is fsynced, then it is renamed and its parent fsynced; one that
goes is renamed first. So a folder named ``step-00012`` is always complete. It holds what the trainer saved and
``state.json``: the run it belongs to, its step, how many events of the journal lie before it, whether the target was
met by then, the buffer's finished groups and open prompts, of the probe its sequences and first distance, and hashes of
what the trainer saved. What a folder ``weights-00012`` holds is said in :mod:`.series`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import Event, Kind, RunFolderError
from ..contract.codec import from_jsonable, to_jsonable
from ..observers.durable import sync
from ..steps.seals import broken, seals

STATE = "state.json"
_REMOVE = "remove this checkpoint folder to resume from the one before"
TRAINER = "trainer"
"""The folder within a checkpoint that the trainer writes."""
_KEYS = {"run", "step", "seq", "met", "buffer", "probes", "probe_first", "seals"}


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint to go on from: its folder for the trainer, the engine's own state, and whether the journal has its
    ``checkpoint`` event (a kill between the two leaves it out)."""

    folder: Path
    state: Mapping[str, Any]
    recorded: bool

    @property
    def step(self) -> int:
        return self.state["step"]

    @property
    def seq(self) -> int:
        """The number of the ``checkpoint`` event that belongs to it: all events before that one are in it."""
        return self.state["seq"]


class CheckpointStore:
    """The ``checkpoints`` folder of a run. What handles all of a checkpoint's bytes takes long: ``begin``, ``seal``,
    ``prune`` and ``sweep``."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def begin(self, name: str) -> Path:
        """An empty folder to write checkpoint ``name`` into."""
        if not self._folder.is_dir():
            self._folder.mkdir()
            sync(self._folder.parent)
        self.sweep()
        folder = self._folder / f".writing-{name}"
        folder.mkdir()
        return folder

    def seal(self, written: Path) -> dict[str, str]:
        """Make what the trainer wrote durable, which may take as long as writing it did; returns its seals."""
        weights = written / TRAINER
        found = seals(weights)
        for path in [*sorted(weights.rglob("*"), reverse=True), weights]:
            sync(path)
        return found

    def commit(self, written: Path, sealed: Mapping[str, str], state: Mapping[str, Any] | None = None, *,
               file: str = STATE) -> Path:
        """Give a checkpoint whose trainer's part is ``sealed`` its name; returns the final folder. ``state`` goes into
        ``file`` with the seals. One that had the name is out of the way, for ``sweep`` to remove."""
        if state is not None:
            (written / file).write_text(json.dumps(to_jsonable({**state, "seals": sealed})))
            sync(written / file)
        sync(written)
        final = written.with_name(written.name.removeprefix(".writing-"))
        if final.exists():
            _put_away(final)
        written.rename(final)
        sync(self._folder)
        return final

    def prune(self) -> None:
        """Remove all but the newest ``keep`` step checkpoints."""
        for folder in self._steps()[:-self._keep]:
            _put_away(folder)
        self.sweep()

    def sweep(self) -> None:
        """Remove what was not finished, and what is no longer wanted."""
        for left in [*self._folder.glob(".writing-*"), *self._folder.glob(".removing-*")]:
            shutil.rmtree(left)

    def latest(self, history: Sequence[Event]) -> Restored | None:
        """The newest checkpoint of the run that recorded ``history``, or None; RunFolderError where it is not whole."""
        steps = self._steps()
        if not steps:
            return None
        state = self._read(steps[-1])
        seq = state["seq"]
        if state["run"] != history[0].data["run"]:
            raise RunFolderError(f"{steps[-1]} belongs to run {state['run']}", hint="remove it to resume without it")
        if seq > len(history):
            raise RunFolderError(f"{steps[-1]} knows {seq} events, the journal has {len(history)}",
                                 hint="restore the journal from a copy, or remove the checkpoint to resume without it")
        return Restored(steps[-1], state, seq < len(history) and history[seq].kind == Kind.CHECKPOINT)

    def _steps(self) -> list[Path]:
        return sorted(folder for folder in self._folder.glob("step-*") if (folder / STATE).is_file())

    def _read(self, folder: Path) -> Mapping[str, Any]:
        try:
            state = from_jsonable(json.loads((folder / STATE).read_text()))
            if missing := _KEYS - state.keys():
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            if folder.name != name_of(state["step"]) or type(state["seq"]) is not int or state["seq"] < 1:
                raise ValueError(f"step {state['step']!r}, seq {state['seq']!r} cannot be")
        except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
            raise RunFolderError(f"{folder / STATE} is damaged: {error}", hint=_REMOVE) from error
        if wrong := broken(folder / TRAINER, state["seals"]):
            raise RunFolderError(f"{folder / TRAINER} is damaged: {wrong}", hint=_REMOVE)
        return state


def _put_away(folder: Path) -> None:
    folder.rename(folder.with_name(f".removing-{folder.name}"))


def name_of(step: int) -> str:
    """What the checkpoint of a step is called."""
    return f"step-{step:05d}"


def size_of(folder: Path) -> int:
    """Bytes of all files under ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
