"""Calls over a connection.

Both ends are alike: each may call what the other serves, any number of calls at a time. A call is the name of a worker
and a request, answered by a result or an error; the caller may cancel it, at its deadline for instance, and does not
wait for the other side to notice. Who calls on behalf of others relays request and answer as the bytes that they are.
When the connection ends, calls it was serving are cancelled and calls waiting for an answer fail with the error that
``explain`` finds.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from grpo_bench.contract import GrpoBenchError, WorkerLost
from grpo_bench.contract.codec import unpack

from ._answers import Kind, answer_of, content_of, failure, outcome_of, pack_request
from ._calls import bound_method, within
from ._frames import Frames

_NAME = struct.Struct("<H")


class Peer:
    """One end. ``lookup`` finds a worker of this side by name; ``explain`` says why the other side is gone."""

    def __init__(self, lookup: Callable[[str], object], explain: Callable[[], Awaitable[WorkerLost]]) -> None:
        self.frames = Frames(self._received, self._connection_lost)
        self._lookup = lookup
        self._explain = explain
        self._ids = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[int, memoryview], Any]]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._why: WorkerLost | None = None

    @property
    def lost(self) -> bool:
        return self._ending is not None

    async def call(self, worker: str, method: str, args: Any, kwargs: Any, deadline_s: float | None) -> Any:
        """Call a method of a worker of the other side."""
        request = pack_request(method, args, kwargs)
        if deadline_s is None:
            return await self.ask(worker, request)
        async with within(deadline_s, f"{worker}.{method}"):
            return await self.ask(worker, request)

    async def ask(self, worker: str, request: bytes) -> Any:
        """Call a worker of the other side with a packed request."""
        return await self._ask(worker, request, content_of)

    async def relay(self, worker: str, request: bytes) -> bytes:
        """Call a worker of the other side on behalf of somebody else, who gets the answer as it is."""
        return await self._ask(worker, request, answer_of)

    async def close(self) -> None:
        """End the connection; calls that wait for an answer fail."""
        if self.frames.connected or self._ending is not None:
            self.frames.close()
            await self._over.wait()

    async def _ask(self, worker: str, request: bytes, read: Callable[[int, memoryview], Any]) -> Any:
        await self.frames.writable()
        if self._why is not None:
            raise self._why.again()
        if not self.frames.connected and not self.lost:
            raise WorkerLost("the worker process is just being started")
        call_id = next(self._ids)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[call_id] = answer, read
        name = worker.encode()
        self.frames.send(Kind.CALL, call_id, _NAME.pack(len(name)), name, request)
        try:
            return await answer
        except asyncio.CancelledError:
            self.frames.send(Kind.CANCEL, call_id, b"")
            raise
        finally:
            del self._waiting[call_id]

    def _received(self, kind: int, call_id: int, body: memoryview) -> None:
        if kind == Kind.CALL:
            self._serve(call_id, body)
        elif kind == Kind.CANCEL:
            if call_id in self._serving:
                self._serving[call_id].cancel()
        elif call_id in self._waiting:
            self._settle(*self._waiting[call_id], kind, body)

    @staticmethod
    def _settle(answer: asyncio.Future[Any], read: Callable[[int, memoryview], Any], kind: int,
                body: memoryview) -> None:
        if answer.done():
            return
        try:
            answer.set_result(read(kind, body))
        except GrpoBenchError as error:
            answer.set_exception(error)

    def _serve(self, call_id: int, body: memoryview) -> None:
        try:
            start = _NAME.size + _NAME.unpack_from(body)[0]
            name = str(body[_NAME.size:start], "utf-8")
            method, args, kwargs = unpack(body[start:])
            function = bound_method(name, self._lookup(name), method)
        except Exception as error:
            kind, content = failure(error, "a call")
            self.frames.send(kind, call_id, content)
            return
        task = asyncio.get_running_loop().create_task(self._run(call_id, f"{name}.{method}", function, args, kwargs))
        self._serving[call_id] = task
        task.add_done_callback(lambda _: self._serving.pop(call_id))

    async def _run(self, call_id: int, label: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        kind, content = await outcome_of(label, function, args, kwargs)
        await self.frames.writable()
        self.frames.send(kind, call_id, content)

    def _connection_lost(self) -> None:
        for task in self._serving.values():
            task.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._fail_waiting())

    async def _fail_waiting(self) -> None:
        self._why = await self._explain()
        for answer, _ in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._why.again())
        self._over.set()
