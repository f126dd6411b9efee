"""How checkpoints get from the trainer to the disk, and into the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ..contract import Kind, Role
from ..steps import Probe
from ..steps.seals import seal_of
from .assembly import Assembly, within
from .checkpoints import STATE, TRAINER, CheckpointStore, size_of
from .clock import aside
from .recorder import Recorder
from .series import FILE as WEIGHTS
from .series import check_saved, name_of, state_of


class Saver:
    """Writes the checkpoints of ``run``. The caller holds the trainer."""

    def __init__(self, parts: Assembly, store: CheckpointStore, recorder: Recorder, observers: Any, clock: Any,
                 run: str) -> None:
        self._parts = parts
        self._store = store
        self._recorder = recorder
        self._observers = observers
        self._clock = clock
        self._run = run
        self._limit_s = parts.plan.profile.limits.checkpoint_s

    async def save(self, name: str, what: Literal["full", "weights"],
                   state: Callable[[Path], dict[str, Any]] | None = None, file: str = STATE, **data: Any) -> None:
        """Write a checkpoint. ``state`` is that of its end, given what the trainer wrote: rollouts go on meanwhile.
        What was recorded before it is on the disk before the checkpoint is, and the event comes once both are."""
        started = self._clock.monotonic()
        folder = await aside(lambda: self._store.begin(name))
        weights = folder / TRAINER
        weights.mkdir()
        with self._parts.attributed(Role.TRAINER, step=self._recorder.step):
            await within(self._parts.trainer.save(weights, what), self._limit_s, "writing the checkpoint",
                         "limits.checkpoint_s")
        sealed = await within(aside(lambda: self._store.seal(folder)), self._limit_s, "getting the checkpoint to disk",
                              "limits.checkpoint_s")
        with self._parts.attributed(Role.TRAINER, step=self._recorder.step):
            kept = {"run": self._run, **state(weights)} if state is not None else None
        self._observers.sync()
        final = self._store.commit(folder, sealed, kept, file=file)
        if file == WEIGHTS:
            data["seal"] = seal_of(final / file)
        self.written(final, what, self._clock.monotonic() - started, **data)
        await aside(self._store.sweep)

    async def save_weights(self, step: int, updated_at: str, probe: Probe) -> None:
        """Keep the weights for the evaluation. What the trainer said to the last refit's probe is kept with them: it is
        not asked again."""
        def state(folder: Path) -> dict[str, Any]:
            tensors = self._parts.trainer.tensors()
            check_saved(folder, tensors)
            return state_of(step, updated_at, tensors, probe, comparable=not self._parts.plan.incomparable)

        await self.save(name_of(step), "weights", state, WEIGHTS, updated_at=updated_at)

    def written(self, folder: Path, what: str, seconds: float, **data: Any) -> None:
        """Record a checkpoint that is on the disk."""
        self._recorder.emit(Kind.CHECKPOINT, folder=folder.name, what=what, seconds=seconds,
                            bytes=size_of(folder / TRAINER), **data)
