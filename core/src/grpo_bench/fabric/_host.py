"""The inside of a worker process: it holds workers and serves calls to them.

Whoever started the process steers it through the control connection, where the host itself answers under the name
:data:`CONTROL`. Other workers of the machine reach it through its Unix socket; there only the workers can be called.
Two workers of one process call each other directly.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from grpo_bench.contract import Address, PluginError, Remote, WorkerContext, WorkerLost, load_object

from ._calls import DirectRemote, bound_method, invoke, worker_name
from ._links import ForwardedRemote, Link, LinkedRemote, place_and_path
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
        self._place, self._path = place_and_path(endpoint)
        self.starter = Peer(self._control, _starter_ended)
        self._workers: dict[str, object] = {}
        self._links: dict[str, Link] = {}
        self._clock = HostClock()

    async def listen(self) -> None:
        """Accept connections of other workers, until the process ends."""
        await asyncio.get_running_loop().create_unix_server(
            lambda: Peer(self._worker, _nobody_waits).frames, self._path)

    def see(self, path: Sequence[str]) -> None:
        """Find modules where the engine finds them too."""
        sys.path.extend(folder for folder in path if folder not in sys.path)

    async def start(self, group: str, rank: int, size: int, target: str, config: Any, rendezvous: str,
                    host: str) -> None:
        name = worker_name(group, rank)
        logger = HostLogger(logging.getLogger(name))
        context = WorkerContext(group, rank, size, config, rendezvous, self.connect, self._clock, logger, host=host)
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
        """A worker that need not be there now: that shows in the calls."""
        name = worker_name(address.group, address.rank)
        if address.endpoint == self._endpoint:
            return DirectRemote(name, lambda: self._worker(name))
        place, path = place_and_path(address.endpoint)
        if place != self._place:
            return ForwardedRemote(self.starter, address)
        link = self._links.setdefault(path, Link(path))
        return LinkedRemote(link, name, ForwardedRemote(self.starter, address) if place else None)

    def _control(self, name: str) -> object:
        """What the starter may call: everything."""
        return self if name == CONTROL else self._worker(name)

    def _worker(self, name: str) -> object:
        if name not in self._workers:
            raise PluginError(f"there is no worker {name} in this process", hint="it is closed or still starting")
        return self._workers[name]


async def _starter_ended() -> WorkerLost:
    return WorkerLost("the engine ended")


async def _nobody_waits() -> WorkerLost:
    return WorkerLost("the caller's process ended")
