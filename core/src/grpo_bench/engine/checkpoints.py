"""Checkpoints: written whole or not at all.

A checkpoint is built under a temporary name, every file is fsynced, then it is renamed and its parent fsynced; so a
folder named ``step-00012`` is always complete. It holds what the trainer saved and ``state.json``: step, the buffer's
finished groups and open prompts, the probe sequences and the digest of the resolved profile.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import RunFolderError
from ..contract.codec import from_jsonable, to_jsonable

_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint to go on from: its folder for the trainer, and the engine's own state."""

    folder: Path
    state: Mapping[str, Any]

    @property
    def step(self) -> int:
        return self.state["step"]


class CheckpointStore:
    """The ``checkpoints`` folder of a run."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep

    def begin(self, name: str) -> Path:
        """An empty folder to write checkpoint ``name`` into."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(".writing-*"):
            shutil.rmtree(left)
        folder = self._folder / f".writing-{name}"
        folder.mkdir()
        return folder

    def commit(self, written: Path, state: Mapping[str, Any] | None = None) -> Path:
        """Make what was written durable and give it its name; returns the final folder."""
        if state is not None:
            (written / _STATE).write_text(json.dumps(to_jsonable(dict(state))))
        for path in sorted(written.rglob("*"), reverse=True):
            sync(path)
        sync(written)
        final = written.with_name(written.name.removeprefix(".writing-"))
        if final.exists():
            shutil.rmtree(final)
        written.rename(final)
        sync(self._folder)
        return final

    def prune(self) -> None:
        """Remove all but the newest ``keep`` step checkpoints."""
        for folder in self._steps()[:-self._keep]:
            shutil.rmtree(folder)

    def latest(self) -> Restored | None:
        """The newest checkpoint, or None."""
        steps = self._steps()
        return self._read(steps[-1]) if steps else None

    def _steps(self) -> list[Path]:
        return sorted(folder for folder in self._folder.glob("step-*") if (folder / _STATE).is_file())

    def _read(self, folder: Path) -> Restored:
        try:
            state = from_jsonable(json.loads((folder / _STATE).read_text()))
        except (ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{folder / _STATE} is damaged: {error}",
                                 hint="remove this checkpoint folder to resume from the one before") from error
        return Restored(folder, state)


def size_of(folder: Path) -> int:
    """Bytes of all files under ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def sync(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
