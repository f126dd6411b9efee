"""Frames on a stream socket.

A frame is a head (size of the body, kind, call id) and a body. Small outgoing frames of one turn of the event loop
leave in one write; a big one is read straight into a buffer of its own size. The body handed to ``received`` is valid
during that call only.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

_HEAD = struct.Struct("<QBQ")
_CHUNK = 256 * 1024


class Frames(asyncio.BufferedProtocol):
    """One end of a connection: ``received(kind, call_id, body)`` for each frame, ``lost()`` once at its end."""

    def __init__(self, received: Callable[[int, int, memoryview], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = memoryview(bytearray(_CHUNK))
        self._start = self._end = 0
        self._outgoing: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def send(self, kind: int, call_id: int, *body: bytes) -> None:
        """Queue one frame with a body of these parts; silently nothing once the connection is lost."""
        if self._transport is None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += (_HEAD.pack(sum(map(len, body)), kind, call_id), *body)
        if len(body[-1]) > _CHUNK:
            self._flush()

    async def writable(self) -> None:
        """Wait while the other end reads slower than this one writes."""
        if not self._writable.is_set():
            await self._writable.wait()

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._lost()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end:]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        needed = _HEAD.size
        while self._end - self._start >= needed:
            size, kind, call_id = _HEAD.unpack_from(self._buffer, self._start)
            needed = _HEAD.size + size
            if self._end - self._start < needed:
                break
            body = self._start + _HEAD.size
            self._start += needed
            self._received(kind, call_id, self._buffer[body:self._start])
            needed = _HEAD.size
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        """Let the frame that begins at ``_start`` have ``needed`` bytes, in the small buffer if it fits there."""
        have = self._end - self._start
        if have and self._start + needed <= len(self._buffer):
            return
        room = max(needed, _CHUNK)
        target = self._buffer if room == len(self._buffer) else memoryview(bytearray(room))
        target[:have] = self._buffer[self._start:self._end]
        self._buffer, self._start, self._end = target, 0, have

    def _flush(self) -> None:
        parts, self._outgoing = self._outgoing, []
        if not parts or self._transport is None:
            return
        if len(parts[-1]) > _CHUNK:
            self._transport.write(b"".join(parts[:-1]))
            self._transport.write(parts[-1])
        else:
            self._transport.write(b"".join(parts))
