"""Weights on their way: the kit as receiver, as sender, and as reader of folders, over the one transport it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..contract import Generator, TensorSpec, Trainer, Transfer
from ..steps import transport
from ..steps.stored import FILES, StoredTensors
from . import tiny
from .world import World

SAFETENSORS = transport.NAME
HF_FILES = "model*.safetensors"
"""The files of a folder that HF tools read weights from."""
CHUNK_BYTES = 2**13
"""Small enough that the kit's policy takes several chunks."""

_LET_GO_S = 5.0
"""How long the kit, as sender, may take to see that the last chunk was taken."""
_PRECISION = {"float64": 1e-6, "float32": 1e-6, "float16": 2**-10, "bfloat16": 2**-7}
"""By which share a value may differ from one that was rounded to that dtype; coarser stores decide."""


def specs_of(tensors: tiny.Tensors) -> list[TensorSpec]:
    """What a transfer of these weights announces."""
    return [TensorSpec(name, tensor.shape, str(tensor.dtype)) for name, tensor in tensors.items()]


def transfer_of(world: World, specs: Sequence[TensorSpec], *, version: int, chunk_bytes: int = 2**20,
                deadline_s: float = 20.0, receivers: int = 1) -> Transfer:
    """A transfer over a rendezvous of its own."""
    return Transfer(version, SAFETENSORS, str(world.new_folder()), tuple(specs), chunk_bytes, deadline_s, receivers)


async def exchanged(trainer: Trainer, transfer: Transfer) -> tuple[dict[TensorSpec, bytes], int]:
    """What a trainer's ``send`` brought, and how many bytes it says it sent."""
    got: dict[TensorSpec, bytes] = {}

    async def take() -> None:
        async for spec, data in transport.receive_tensors(transfer, 0):
            got[spec] = bytes(data)

    sent, _ = await asyncio.gather(trainer.send(transfer), take())
    return got, sent


async def hand_over(generator: Generator, world: World, tensors: tiny.Tensors, version: int) -> None:
    """Give a generator these weights, as a trainer would."""
    transfer = transfer_of(world, specs_of(tensors), version=version, chunk_bytes=CHUNK_BYTES,
                           receivers=len(generator.addresses()))
    sending = asyncio.ensure_future(transport.send_tensors(transfer, lambda spec: tensors[spec.name]))
    try:
        await generator.receive(transfer)
        await asyncio.wait([sending], timeout=_LET_GO_S)
        assert sending.done(), "receive came back before every engine had taken all weights"
        await sending
    finally:
        sending.cancel()


def stored(folder: Path, files: str = FILES) -> Mapping[TensorSpec, bytes]:
    """The tensors of an HF folder."""
    found = StoredTensors(folder, files)
    return {spec: found.read(spec) for spec in found.specs}


def apart(sent: Mapping[TensorSpec, bytes], kept: Mapping[TensorSpec, bytes]) -> str:
    """How two lots of tensors differ, by name, shape and value, up to the precision of the coarser dtype; empty where
    they do not."""
    by_name = {spec.name: (spec, data) for spec, data in kept.items()}
    if odd := {spec.name for spec in sent} ^ by_name.keys():
        return f"only one has {', '.join(sorted(odd))}"
    for spec, data in sent.items():
        other, own = by_name[spec.name][0], _values(*by_name[spec.name])
        if spec.shape != other.shape:
            return f"{spec.name} has the shapes {spec.shape} and {other.shape}"
        share = max(_PRECISION[spec.dtype], _PRECISION[other.dtype])
        if not np.allclose(_values(spec, data), own, rtol=share, atol=share * 1e-3):
            return f"{spec.name} has other values"
    return ""


def _values(spec: TensorSpec, data: bytes) -> npt.NDArray[np.float64]:
    if spec.dtype == "bfloat16":  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<")).astype(np.float64)
