"""The worker side of the local fabric: a process that holds workers and serves calls to them.

The fabric steers the host through the control connection it was started with, where the host itself answers under the
name :data:`CONTROL`. Other workers reach it through its Unix socket; there only the workers can be called. Two
workers of one host call each other directly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from grpo_bench.contract import Address, PluginError, Remote, WorkerContext, WorkerLost, load_object

from ._calls import DirectRemote, bound_method, invoke, within, worker_name
from ._peer import Peer
from ._stacks import task_stacks

CONTROL = "host"


class HostClock:
    """The event loop's time and the system's date."""

    def __init__(self) -> None:
        self.monotonic: Callable[[], float] = asyncio.get_running_loop().time

    def now_utc(self) -> str:
        return datetime.now(UTC).isoformat(timespec="microseconds")


class HostLogger(logging.LoggerAdapter[logging.Logger]):
    """The standard library's logger, which also takes structlog's form: an event and key=value."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        known = {key: kwargs.pop(key) for key in ("exc_info", "stack_info", "stacklevel", "extra") if key in kwargs}
        return " ".join([str(msg), *(f"{key}={value}" for key, value in kwargs.items())]), known


class Host:
    """Workers by name. Public methods are what the fabric calls."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._workers: dict[str, object] = {}
        self._links: dict[str, _Link] = {}
        self._clock = HostClock()

    async def listen(self) -> None:
        """Accept connections of other workers, until the process ends."""
        await asyncio.get_running_loop().create_unix_server(
            lambda: Peer(self._worker, _nobody_waits).frames, self._endpoint)

    def control(self, name: str) -> object:
        """What the fabric's own connection may call: everything."""
        return self if name == CONTROL else self._worker(name)

    def see(self, path: Sequence[str]) -> None:
        """Find modules where the engine finds them too."""
        sys.path.extend(folder for folder in path if folder not in sys.path)

    async def start(self, group: str, rank: int, size: int, target: str, config: Any, rendezvous: str) -> None:
        name = worker_name(group, rank)
        logger = HostLogger(logging.getLogger(name))
        context = WorkerContext(group, rank, size, config, rendezvous, self.connect, self._clock, logger)
        self._workers[name] = await invoke(f"the start of worker {name}", lambda: load_object(target)(context), (), {})

    async def stop(self, name: str) -> None:
        """Call the worker's own ``close`` where it has one, and forget it."""
        worker = self._workers.pop(name, None)
        if callable(getattr(worker, "close", None)):
            await invoke(f"{name}.close", bound_method(name, worker, "close"), (), {})

    def tasks(self) -> str:
        """Stacks of the event loop's tasks."""
        return task_stacks()

    async def connect(self, address: Address) -> Remote:
        name = worker_name(address.group, address.rank)
        if address.endpoint == self._endpoint:
            return DirectRemote(name, lambda: self._worker(name))
        link = self._links.setdefault(address.endpoint, _Link(address.endpoint))
        await link.peer()
        return _LinkedRemote(link, name)

    def _worker(self, name: str) -> object:
        if name not in self._workers:
            raise PluginError(f"there is no worker {name} in this process", hint="it is closed or still starting")
        return self._workers[name]


class _Link:
    """The connection to another host, made again after the other side was restarted."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
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
            await asyncio.get_running_loop().create_unix_connection(lambda: peer.frames, self._endpoint)
        except OSError as error:
            raise WorkerLost(f"no worker process answers at {self._endpoint}: {error}") from error
        return peer

    async def _explain(self) -> WorkerLost:
        return WorkerLost(f"the worker process at {self._endpoint} ended its connection")


class _LinkedRemote:
    """A worker of another host."""

    local = False

    def __init__(self, link: _Link, name: str) -> None:
        self._link = link
        self._name = name

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        async with within(deadline_s, f"{self._name}.{method}"):
            peer = await self._link.peer()
            return await peer.call(self._name, method, args, kwargs, None)


def _serves_nothing(name: str) -> object:
    raise PluginError(f"there is no worker {name} at this end of the connection")


async def _nobody_waits() -> WorkerLost:
    return WorkerLost("the caller's process ended")
