"""The transport ``safetensors``: weights as files in a folder that both sides see.

Sender and receivers derive the same chunks from the Transfer. A chunk is a file ``chunk-00000.safetensors`` written
under a temporary name and renamed, so that a visible file is whole; it holds whole tensors, or a byte range of one that
is larger than a chunk. A last file ``done`` says how many bytes there were and their SHA-256. Receivers read chunks as
they appear, so that both sides work at once. Either side gives up after the transfer's deadline. Data are raw
little-endian bytes, whatever the dtype.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import DeadlineExceeded, RefitError, TensorSpec, Transfer

__all__ = ["NAME", "receive_tensors", "send_tensors"]

NAME = "safetensors"

_STORED = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "uint8": "u1"}
"""How numpy, which knows no bfloat16, names the bytes of each dtype."""
_DONE = "done"
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class _Piece:
    spec: TensorSpec
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        return self.stop - self.start == _size(self.spec)

    @property
    def key(self) -> str:
        return self.spec.name if self.whole else f"{self.spec.name}[{self.start}:{self.stop}]"


async def send_tensors(transfer: Transfer, data: Callable[[TensorSpec], Any]) -> int:
    """Write all tensors; ``data`` gives the bytes (any buffer) of one. Returns the bytes sent."""
    from safetensors.numpy import save

    folder, digest, total = Path(transfer.rendezvous), hashlib.sha256(), 0
    async with _within(transfer, "sending"):
        held: tuple[TensorSpec, memoryview] | None = None
        for number, chunk in enumerate(_chunks(transfer)):
            entries = {}
            for piece in chunk:
                if held is None or held[0] is not piece.spec:
                    held = piece.spec, _bytes_of(piece.spec, data(piece.spec))
                part = bytes(held[1][piece.start:piece.stop])
                digest.update(part)
                total += len(part)
                entries[piece.key] = _array(piece, part)
            _publish(folder / _chunk_name(number), save(entries))
            await asyncio.sleep(0)
        summary = {"version": transfer.version, "bytes": total, "sha256": digest.hexdigest()}
        _publish(folder / _DONE, json.dumps(summary).encode())
    return total


async def receive_tensors(transfer: Transfer) -> AsyncIterator[tuple[TensorSpec, bytes]]:
    """The tensors in sending order, each as soon as it is there. RefitError where bytes arrived changed: what came
    before must not be used then."""
    from safetensors.numpy import load

    folder, digest, total = Path(transfer.rendezvous), hashlib.sha256(), 0
    async with _within(transfer, "receiving"):
        parts: list[bytes] = []
        for number, chunk in enumerate(_chunks(transfer)):
            entries = load(await _appeared(folder / _chunk_name(number)))
            for piece in chunk:
                if piece.key not in entries:
                    raise RefitError(f"{_chunk_name(number)} does not hold {piece.key}")
                part = entries[piece.key].tobytes()
                if len(part) != piece.stop - piece.start:
                    raise RefitError(f"{piece.key} has {len(part)} bytes, expected {piece.stop - piece.start}")
                digest.update(part)
                total += len(part)
                parts.append(part)
                if piece.stop == _size(piece.spec):
                    yield piece.spec, parts[0] if len(parts) == 1 else b"".join(parts)
                    parts = []
        summary = json.loads(await _appeared(folder / _DONE))
    expected = {"version": transfer.version, "bytes": total, "sha256": digest.hexdigest()}
    if summary != expected:
        wrong = next(key for key in expected if summary.get(key) != expected[key])
        raise RefitError(f"{wrong} is {expected[wrong]} here but {summary.get(wrong)} at the sender")


def _chunks(transfer: Transfer) -> list[list[_Piece]]:
    chunks: list[list[_Piece]] = [[]]
    room = transfer.chunk_bytes
    for spec in transfer.tensors:
        size, start = _size(spec), 0
        if size > room and chunks[-1]:
            chunks.append([])
            room = transfer.chunk_bytes
        while True:
            stop = min(size, start + room)
            chunks[-1].append(_Piece(spec, start, stop))
            room -= stop - start
            start = stop
            if start == size:
                break
            chunks.append([])
            room = transfer.chunk_bytes
    return [chunk for chunk in chunks if chunk]


def _size(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * int(_STORED[spec.dtype][-1])


def _bytes_of(spec: TensorSpec, data: Any) -> memoryview:
    view = memoryview(data)
    view = view if view.nbytes == 0 else view.cast("B")
    if view.nbytes != _size(spec):
        raise RefitError(f"{spec.name} has {view.nbytes} bytes, its shape and dtype say {_size(spec)}")
    return view


def _array(piece: _Piece, part: bytes) -> Any:
    import numpy as np

    if not piece.whole:
        return np.frombuffer(part, np.uint8)
    return np.frombuffer(part, _STORED[piece.spec.dtype]).reshape(piece.spec.shape)


def _chunk_name(number: int) -> str:
    return f"chunk-{number:05d}.safetensors"


def _publish(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


async def _appeared(path: Path) -> bytes:
    while True:
        if (content := _content(path)) is not None:
            return content
        await asyncio.sleep(_POLL_S)


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@asynccontextmanager
async def _within(transfer: Transfer, doing: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(transfer.deadline_s):
            yield
    except TimeoutError:
        raise DeadlineExceeded(f"{doing} weight version {transfer.version} took longer than {transfer.deadline_s:g} s",
                               hint="see limits.refit_s") from None
