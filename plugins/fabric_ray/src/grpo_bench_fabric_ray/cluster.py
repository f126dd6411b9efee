"""The connection of this process to a Ray cluster: made, asked for hosts, ended. A process has one at a time."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import DeadlineExceeded, PlanError

from ._plugin import ADDRESS
from .aside import aside
from .hosts import Host, hosts_of
from .own import OwnCluster

ASK_S = 10.0
"""Longest time in which the cluster says which hosts it has."""


@dataclass(frozen=True)
class Cluster:
    """``here`` is the name of the host that the engine runs on; ``own`` is there where the run started the cluster."""

    address: str
    namespace: str
    here: str
    own: OwnCluster | None

    async def hosts(self) -> Mapping[str, Host]:
        """All hosts that there are or were, by name."""
        import ray

        return hosts_of(await aside(ASK_S, ray.nodes))

    async def close(self) -> None:
        import ray

        with suppress(TimeoutError):
            await aside(ASK_S, ray.shutdown)
        if self.own is not None:
            await _end(self.own)


async def connect(address: str | None, namespace: str, object_store: int, log: Path, deadline_s: float) -> Cluster:
    """Connect to the cluster at ``address``, or at RAY_ADDRESS, or to one that is started here."""
    found, own = address or os.environ.get("RAY_ADDRESS"), None
    if found and not re.fullmatch(ADDRESS, found):  # "local" and other words of Ray's would start or find another one
        raise PlanError(f"RAY_ADDRESS = {found!r:.80} is not the host:port of a Ray cluster",
                        hint="unset it for a cluster of this machine alone, or set fabric.address")
    path = list(sys.path)
    import ray

    sys.path[:] = path  # Ray puts libraries of its own first, which workers and the provenance would take for the run's
    if ray.is_initialized():
        raise PlanError("this process is connected to a Ray cluster already, and it can have one only")
    if not found:
        own = await OwnCluster.start(object_store, log, deadline_s)
        found = own.address
        os.environ.update(own.authentication)
    try:
        _authenticate()
        here = await _join(found, namespace, deadline_s)
    except BaseException:
        if own is not None:
            await _end(own)
        raise
    return Cluster(found, namespace, here, own)


async def _end(own: OwnCluster) -> None:
    for name in own.authentication:
        os.environ.pop(name, None)
    await own.end()


async def _join(address: str, namespace: str, deadline_s: float) -> str:
    """Connect; the name of the host that this process is on."""
    import ray
    from ray._private import worker
    from ray.exceptions import RayError

    logging.getLogger("ray").setLevel(logging.ERROR)
    worker._worker_logs_enabled = False  # what Ray says about nodes that died would be printed all the same
    try:
        await aside(deadline_s, lambda: ray.init(
            address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR))
        _keep_signals()
        nodes = await aside(ASK_S, ray.nodes)
    except TimeoutError:
        raise DeadlineExceeded(f"the Ray cluster at {address} did not answer in {deadline_s:g} s",
                               hint="see fabric.address, or RAY_ADDRESS where that is not set") from None
    except (RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        said = str(error).strip().splitlines()
        raise PlanError(f"the Ray cluster at {address} cannot be joined: {' '.join(map(str.strip, said[:4]))}",
                        hint="see fabric.address, or RAY_ADDRESS where that is not set") from error
    mine = ray.get_runtime_context().get_node_id()
    return next(name for name, host in hosts_of(node for node in nodes if node["NodeID"] == mine).items())


def _keep_signals() -> None:
    """Ray installs a handler below Python's for this signal, which writes stacks to the user's screen."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))


def _authenticate() -> None:
    """Take what the environment says now about tokens: Ray reads it once in a process."""
    from ray._raylet import AuthenticationTokenLoader, Config  # pyright: ignore[reportAttributeAccessIssue]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
