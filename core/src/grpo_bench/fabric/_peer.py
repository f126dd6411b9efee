"""Calls over a connection.

Both ends are alike: each may call what the other serves, any number of calls at a time. A call is a request (worker,
method, arguments) answered by a result or an error; the caller may cancel it, at its deadline for instance, and does
not wait for the other side to notice. When the connection ends, calls it was serving are cancelled and calls waiting
for an answer fail with the error that ``explain`` finds.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any

from grpo_bench.contract import GrpoBenchError, WorkerLost
from grpo_bench.contract.codec import pack, unpack

from ._calls import bound_method, error_from_wire, error_to_wire, invoke, plugin_error, within
from ._frames import Frames


class _Kind(IntEnum):
    CALL = 1
    CANCEL = 2
    RESULT = 3
    ERROR = 4


class Peer:
    """One end. ``lookup`` finds a worker of this side by name; ``explain`` says why the other side is gone."""

    def __init__(self, lookup: Callable[[str], object], explain: Callable[[], Awaitable[WorkerLost]]) -> None:
        self.frames = Frames(self._received, self._connection_lost)
        self._lookup = lookup
        self._explain = explain
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._ending: asyncio.Task[None] | None = None
        self._over = asyncio.Event()
        self._why: WorkerLost | None = None

    @property
    def lost(self) -> bool:
        return self._ending is not None

    async def call(self, worker: str, method: str, args: Any, kwargs: Any, deadline_s: float | None) -> Any:
        """Call a method of a worker of the other side."""
        request = pack([worker, method, list(args), kwargs])
        if deadline_s is None:
            return await self._ask(request)
        async with within(deadline_s, f"{worker}.{method}"):
            return await self._ask(request)

    async def close(self) -> None:
        """End the connection; calls that wait for an answer fail."""
        if self.frames.connected or self._ending is not None:
            self.frames.close()
            await self._over.wait()

    async def _ask(self, request: bytes) -> Any:
        await self.frames.writable()
        if self._why is not None:
            raise self._why.again()
        if not self.frames.connected and not self.lost:
            raise WorkerLost("the worker process is just being started")
        call_id = next(self._ids)
        answer = self._waiting[call_id] = asyncio.get_running_loop().create_future()
        self.frames.send(_Kind.CALL, call_id, request)
        try:
            return await answer
        except asyncio.CancelledError:
            self.frames.send(_Kind.CANCEL, call_id, b"")
            raise
        finally:
            del self._waiting[call_id]

    def _received(self, kind: int, call_id: int, body: memoryview) -> None:
        if kind == _Kind.CALL:
            self._serve(call_id, body)
        elif kind == _Kind.CANCEL:
            if call_id in self._serving:
                self._serving[call_id].cancel()
        elif call_id in self._waiting and not self._waiting[call_id].done():
            self._settle(self._waiting[call_id], kind, body)

    def _settle(self, answer: asyncio.Future[Any], kind: int, body: memoryview) -> None:
        try:
            content = unpack(body)
        except Exception as error:
            answer.set_exception(plugin_error("reading a worker's answer", error))
            return
        if kind == _Kind.ERROR:
            answer.set_exception(error_from_wire(content))
        else:
            answer.set_result(content)

    def _serve(self, call_id: int, body: memoryview) -> None:
        try:
            name, method, args, kwargs = unpack(body)
            function = bound_method(name, self._lookup(name), method)
        except Exception as error:
            self._answer_error(call_id, error, "a call")
            return
        task = asyncio.get_running_loop().create_task(self._run(call_id, f"{name}.{method}", function, args, kwargs))
        self._serving[call_id] = task
        task.add_done_callback(lambda _: self._serving.pop(call_id))

    async def _run(self, call_id: int, label: str, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        try:
            answer = pack(await invoke(label, function, args, kwargs))
            await self.frames.writable()
            self.frames.send(_Kind.RESULT, call_id, answer)
        except Exception as error:
            self._answer_error(call_id, error, label)

    def _answer_error(self, call_id: int, error: Exception, label: str) -> None:
        known = error if isinstance(error, GrpoBenchError) else plugin_error(label, error)
        self.frames.send(_Kind.ERROR, call_id, pack(error_to_wire(known)))

    def _connection_lost(self) -> None:
        for task in self._serving.values():
            task.cancel()
        self._ending = asyncio.get_running_loop().create_task(self._fail_waiting())

    async def _fail_waiting(self) -> None:
        self._why = await self._explain()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._why.again())
        self._over.set()
