"""The transport ``safetensors``: weights as files in a folder that both sides see.

Sender and receivers derive the same chunks from the Transfer. A chunk is a file ``chunk-00000.safetensors`` written
under a temporary name and renamed, so that a visible file is whole; it holds whole tensors, or a byte range of one that
is larger than a chunk. A receiver that is done with a chunk leaves an empty file ``chunk-00000.taken-<number>``. The
sender removes what all have taken and has at most two chunks in the folder, so that both sides work at once and the
weights never lie there whole. A last file ``done`` says how many bytes there were and their SHA-256. Either side gives
up after the transfer's deadline. Data are raw little-endian bytes, whatever the dtype.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from grpo_bench.contract import DeadlineExceeded, RefitError, TensorSpec, Transfer

__all__ = ["HF_FOLDER", "NAME", "WINDOW", "Chunk", "Piece", "receive_chunks", "receive_tensors", "send_tensors"]

NAME = "safetensors"
HF_FOLDER = "hf_folder"
"""The transport of weights that lie in a folder in HF form already: the rendezvous is that folder, every engine reads
it itself, and there is nothing to send."""
WINDOW = 2
"""Chunks in the folder at most."""

_STORED = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "uint8": "u1"}
"""How numpy, which knows no bfloat16, names the bytes of each dtype."""
_DONE = "done"
_POLL_S = 0.002

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``start:stop`` of one tensor."""

    spec: TensorSpec
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        """Whether it is all of the tensor. Then the file has the tensor's shape, and its dtype, but that bfloat16 goes
        as uint16; anything less is a row of uint8."""
        return self.stop - self.start == _size(self.spec)

    @property
    def last(self) -> bool:
        """Whether the tensor ends here."""
        return self.stop == _size(self.spec)

    @property
    def key(self) -> str:
        """Its name in the file."""
        return self.spec.name if self.whole else f"{self.spec.name}[{self.start}:{self.stop}]"


class Chunk(NamedTuple):
    """A file in safetensors form, and what is in it, in order."""

    path: Path
    pieces: tuple[Piece, ...]


async def send_tensors(transfer: Transfer, data: Callable[[TensorSpec], Any]) -> int:
    """Write all tensors; ``data`` gives the bytes (any buffer) of one. Returns the bytes sent; the last chunks may not
    have been taken by then, and are for the folder's owner to remove."""
    from safetensors.numpy import save

    if transfer.receivers < 1:
        raise RefitError(f"nobody receives weight version {transfer.version}", hint="the transfer's receivers is 0")
    folder, wait, digest, total = Path(transfer.rendezvous), _Wait(transfer, "sending"), hashlib.sha256(), 0
    held: tuple[TensorSpec, memoryview] | None = None
    for number, chunk in enumerate(_chunks(transfer)):
        await _make_room(folder, number - WINDOW, transfer.receivers, wait)
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


async def receive_chunks(transfer: Transfer, receiver: int) -> AsyncIterator[Chunk]:
    """The chunks in sending order, each as soon as it is there, for engine ``receiver``. Asking for the next one says
    that this one was taken: its file may be gone then. RefitError where another version or another number of bytes was
    sent; whether bytes arrived unchanged is for the caller to see."""
    if not 0 <= receiver < transfer.receivers:
        raise RefitError(f"receiver {receiver} is not one of the {transfer.receivers} of weight version "
                         f"{transfer.version}", hint="an engine receives under the rank of its address")
    folder, wait, total = Path(transfer.rendezvous), _Wait(transfer, "receiving"), 0
    for number, pieces in enumerate(_chunks(transfer)):
        path = folder / _chunk_name(number)
        await wait.until(lambda path=path: path.exists() or None)
        total += sum(piece.stop - piece.start for piece in pieces)
        yield Chunk(path, tuple(pieces))
        _take(folder, number, receiver)
    _check_sent(await wait.until(lambda: _sent(folder)), version=transfer.version, bytes=total)


async def receive_tensors(transfer: Transfer, receiver: int) -> AsyncIterator[tuple[TensorSpec, bytes]]:
    """The tensors in sending order, each as soon as it is there, for engine ``receiver``. RefitError where bytes
    arrived changed: what came before must not be used then."""
    from safetensors.numpy import load

    digest = hashlib.sha256()
    parts: list[bytes] = []
    async for path, pieces in receive_chunks(transfer, receiver):
        entries = load(path.read_bytes())
        for piece in pieces:
            if piece.key not in entries:
                raise RefitError(f"{path.name} does not hold {piece.key}")
            part = entries[piece.key].tobytes()
            if len(part) != piece.stop - piece.start:
                raise RefitError(f"{piece.key} has {len(part)} bytes, expected {piece.stop - piece.start}")
            digest.update(part)
            parts.append(part)
            if piece.last:
                yield piece.spec, parts[0] if len(parts) == 1 else b"".join(parts)
                parts = []
    _check_sent(_sent(Path(transfer.rendezvous)) or {}, sha256=digest.hexdigest())


async def _make_room(folder: Path, number: int, receivers: int, wait: _Wait) -> None:
    """Remove a chunk, once all have taken it; a negative number is none."""
    if number < 0:
        return
    marks = [folder / _mark_name(number, receiver) for receiver in range(receivers)]
    left = dict(enumerate(marks))

    def taken() -> bool | None:
        while left and next(iter(left.values())).exists():
            del left[next(iter(left))]
        return None if left else True

    await wait.until(taken, lambda: f"engine {next(iter(left))} has not taken {_chunk_name(number)}")
    for path in (folder / _chunk_name(number), *marks):
        path.unlink()


def _take(folder: Path, number: int, receiver: int) -> None:
    try:
        (folder / _mark_name(number, receiver)).touch(exist_ok=False)
    except FileExistsError:
        raise RefitError(f"{_chunk_name(number)} was taken by engine {receiver} before",
                         hint="each engine receives under its own number, the rank of its address") from None


def _sent(folder: Path) -> dict[str, Any] | None:
    """What the sender says it sent, once it has."""
    try:
        return json.loads((folder / _DONE).read_bytes())
    except FileNotFoundError:
        return None


def _check_sent(said: dict[str, Any], **expected: Any) -> None:
    for key, value in expected.items():
        if said.get(key) != value:
            raise RefitError(f"{key} is {value} here but {said.get(key)} at the sender")


def _chunks(transfer: Transfer) -> list[list[Piece]]:
    chunks: list[list[Piece]] = [[]]
    room = transfer.chunk_bytes
    for spec in transfer.tensors:
        size, start = _size(spec), 0
        if size > room and chunks[-1]:
            chunks.append([])
            room = transfer.chunk_bytes
        while True:
            stop = min(size, start + room)
            chunks[-1].append(Piece(spec, start, stop))
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


def _array(piece: Piece, part: bytes) -> Any:
    import numpy as np

    if not piece.whole:
        return np.frombuffer(part, np.uint8)
    return np.frombuffer(part, _STORED[piece.spec.dtype]).reshape(piece.spec.shape)


def _chunk_name(number: int) -> str:
    return f"chunk-{number:05d}.safetensors"


def _mark_name(number: int, receiver: int) -> str:
    return f"chunk-{number:05d}.taken-{receiver}"


def _publish(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RefitError(f"there is no room for {path.name} of {len(content)} bytes in {path.parent}",
                         hint=f"make room for {WINDOW + 1} chunks there, or set a smaller refit.chunk_bytes") from error
    os.replace(temporary, path)


class _Wait:
    """Waits of one side, up to the transfer's deadline."""

    def __init__(self, transfer: Transfer, doing: str) -> None:
        self._transfer, self._doing = transfer, doing
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + transfer.deadline_s

    async def until(self, look: Callable[[], T | None], missing: Callable[[], str] = str) -> T:
        """What ``look`` sees, once it sees something; ``missing`` says what it waited for in vain."""
        while (found := look()) is None:
            if self._now() >= self._until:
                version, seconds = self._transfer.version, self._transfer.deadline_s
                why = f": {said}" if (said := missing()) else ""
                raise DeadlineExceeded(f"{self._doing} weight version {version} took longer than {seconds:g} s{why}",
                                       hint="see limits.refit_s")
            await asyncio.sleep(_POLL_S)
        return found
