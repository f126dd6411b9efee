"""Weights on disk in the trainer's place: what a refit and its probe ask of a trainer, answered from a folder.

An engine that can (transport ``hf_folder``) reads the folder itself, on whatever host it is; any other gets the tensors
that the trainer would send. Either way the generator is held against what the trainer said about the probe's sequences
when these weights were made. So a refit from a folder passes the same check as one from the trainer.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import numpy as np

from ..contract import Floats, RefitError, TensorSpec, TrainBatch, Transfer
from ..steps import Probe, probe_batch
from ..steps.stored import StoredTensors, tensor_names
from ..steps.transport import HF_FOLDER, send_tensors
from .checkpoints import TRAINER, size_of
from .series import ProbeRecord, Weights, read_weights


class StoredTrainer:
    """What refits over ``transport`` need of the contract's Trainer. ``open`` chooses the weights."""

    def __init__(self, transport: str) -> None:
        self._transport = transport
        self._folder = Path()
        self._stored: StoredTensors | None = None
        self._tensors: tuple[TensorSpec, ...] = ()
        self._probe: ProbeRecord | None = None

    def open(self, weights: Weights, probe: Probe) -> None:
        """Stand for ``weights`` from now on; ``probe`` asks about their sequences then."""
        names, record = read_weights(weights)
        self._folder = weights.folder.absolute() / TRAINER
        held = tensor_names(self._folder)
        if lacking := [name for name in names if name not in held]:
            raise RefitError(f"{self._folder} holds no tensor {lacking[0]}",
                             hint="restore the folder from a copy")
        if self._transport != HF_FOLDER:
            self._stored = StoredTensors(self._folder)
            specs = {spec.name: spec for spec in self._stored.specs}
            self._tensors = tuple(specs[name] for name in names)
        self._probe = record
        probe.kept, probe.sampled = record.sequences[:record.kept], record.sequences[record.kept:]
        probe.first = record.first

    def folder(self) -> Path:
        """Where the weights lie."""
        return self._folder

    async def start(self) -> None:
        await asyncio.sleep(0)

    async def log_probabilities(self, batch: TrainBatch, weights: Literal["current", "reference"]) -> Floats:
        """What the trainer said about the probe's sequences, which are all that can be asked about."""
        probe = self._probe
        if probe is None or probe.answers is None or not np.array_equal(
                batch.ids, probe_batch(probe.sequences).ids):
            raise RefitError("stored weights answer for the probe of their own refit only")
        answers = np.zeros(len(batch.ids), np.float32)
        answers[batch.token_mask] = probe.answers
        return answers

    def tensors(self) -> tuple[TensorSpec, ...]:
        return self._tensors

    async def send(self, transfer: Transfer) -> int:
        stored = self._stored
        return size_of(self._folder) if stored is None else await send_tensors(transfer, stored.read)

    async def close(self) -> None:
        await asyncio.sleep(0)
