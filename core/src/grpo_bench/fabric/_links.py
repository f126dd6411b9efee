"""How one worker process reaches another.

An endpoint is the path of a Unix socket; where workers are on several machines, the name of its place stands before it
(``place:/path``). A call to another place, or to a socket where nobody listens any more since its worker moved, is
forwarded by the starter of the process, which answers to :data:`OUTSIDE` at the other end of the control connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from grpo_bench.contract import Address, PluginError, WorkerLost

from ._answers import pack_request, read_answer
from ._calls import within, worker_name
from ._peer import Peer

OUTSIDE = "outside"


def place_and_path(endpoint: str) -> tuple[str, str]:
    """Of an endpoint; the place is empty where there is but one."""
    return ("", endpoint) if endpoint.startswith("/") else (endpoint.partition(":")[0], endpoint.partition(":")[2])


class Link:
    """The connection to another host, made again after the other side was restarted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._peer: Peer | None = None
        self._making = asyncio.Lock()

    async def peer(self) -> Peer:
        async with self._making:
            if self._peer is None or self._peer.lost:
                self._peer = await self._open()
            return self._peer

    async def _open(self) -> Peer:
        peer = Peer(_serves_nothing, self._explain)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: peer.frames, self._path)
        except OSError as error:
            raise WorkerLost(f"no worker process answers at {self._path}: {error}") from error
        return peer

    async def _explain(self) -> WorkerLost:
        return WorkerLost(f"the worker process at {self._path} ended its connection")


class ForwardedRemote:
    """A worker that only the starter of this process reaches, on whatever machine it is now."""

    local = False

    def __init__(self, starter: Peer, address: Address) -> None:
        self._starter = starter
        self._address = address

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        label = f"{worker_name(self._address.group, self._address.rank)}.{method}"
        async with within(deadline_s, label):
            request = pack_request(method, args, kwargs)
            return read_answer(await self._starter.call(OUTSIDE, "forward", (self._address, request), {}, None))


class LinkedRemote:
    """A worker of another process of this machine; ``elsewhere`` reaches it where it is there no more."""

    local = False

    def __init__(self, link: Link, name: str, elsewhere: ForwardedRemote | None = None) -> None:
        self._link = link
        self._name = name
        self._elsewhere = elsewhere

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        async with within(deadline_s, f"{self._name}.{method}"):
            try:
                peer = await self._link.peer()
            except WorkerLost:
                if self._elsewhere is None:
                    raise
                return await self._elsewhere.call(method, *args, **kwargs)
            return await peer.call(self._name, method, args, kwargs, None)


def _serves_nothing(name: str) -> object:
    raise PluginError(f"there is no worker {name} at this end of the connection")
