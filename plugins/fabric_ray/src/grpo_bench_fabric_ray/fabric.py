"""Workers on the hosts of a Ray cluster.

Ray gives places, GPUs and a way between hosts; the workers are processes as the local fabric starts them, one for each
seat, held by a light actor (:mod:`.actor`). The engine's process is the driver: what it asks of all workers is packed
once and put into the object store once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_bench.contract import GroupSpec, Placement, PluginError, WorkerLost
from grpo_bench.fabric.kit import SeatedFabric

from .aside import aside
from .cluster import Cluster, connect
from .hosts import Host, lives, places, successor
from .opening import Opening
from .seat import Folder, RaySeat

if TYPE_CHECKING:
    from ._plugin import RayConfig

BIG = 100_000
"""Bytes from which on Ray puts an argument into its object store by itself."""
PUT_S = 120.0
_OWN_LOSS_S = 4.0
_SEEN_S = 2.0


class RayFabric(SeatedFabric[RaySeat]):
    """``note`` is told what the user should know while the cluster is waited for."""

    def __init__(self, config: RayConfig, run_folder: Path, logger: Any, note: Callable[[str, str], None]) -> None:
        super().__init__(logger)
        self.grace_s = config.grace_s
        self.logs = run_folder.absolute() / "workers"
        self._config = config
        self._note = note
        self._cluster: Cluster | None = None
        self._seats: list[RaySeat] = []
        self._folders: dict[str, Folder] = {}
        self._moved: dict[str, str] = {}
        self._hosts: Mapping[str, Host] = {}

    async def open(self, placements: Mapping[str, Placement]) -> None:
        """Join the cluster, or start one, and wait until it has what is placed on it."""
        config = self._config
        self._cluster = cluster = await connect(
            config.address, f"grpo-bench-{secrets.token_hex(8)}", int(config.object_store_gib * 2**30),
            self.logs / "ray-cluster.log", config.wait_s)
        self.look_s = config.loss_s if cluster.own is None else _OWN_LOSS_S
        self._hosts, self._moved = await Opening(cluster, placements, self.logs, self._note).done(config.wait_s)

    def new_seat(self, spec: GroupSpec, rank: int) -> RaySeat:
        seat = RaySeat(self, spec, rank, len(self._seats) + 1, places(spec.placement, self._joined.here)[rank])
        self._seats.append(seat)
        return seat

    async def is_lost(self, seat: RaySeat) -> bool:
        return await seat.lost()

    async def ready(self, request: bytes) -> Any:
        if len(request) < BIG:
            return request
        import ray
        from ray.exceptions import RayError

        try:
            return await aside(PUT_S, ray.put, request)
        except (RayError, TimeoutError) as error:
            raise PluginError(f"{len(request)} bytes do not go into Ray's object store: {error}",
                              hint="give it more memory: fabric.object_store_gib") from error

    async def stacks(self) -> Mapping[str, str]:
        held = [seat for seat in self._seats if seat.held is not None]
        found = await asyncio.gather(*(seat.stacks() for seat in held))
        return {seat.name: text for seat, text in zip(held, found, strict=True)}

    async def cpu_seconds(self) -> float:
        """CPU time of the worker processes and all they started; Ray's own and the engine's are not in it."""
        return sum(await asyncio.gather(*(seat.cpu_seconds() for seat in self._seats)))

    async def close(self) -> None:
        try:
            await self.close_groups()
        finally:
            cluster, self._cluster = self._cluster, None
            if cluster is not None:
                await cluster.close()

    @property
    def settings(self) -> dict[str, Any]:
        """What every actor is told about the run."""
        return {"logs": str(self.logs), "grace_s": self.grace_s, "namespace": self._joined.namespace,
                "cwd": os.getcwd(), "path": sys.path}

    def chosen(self, seat: RaySeat) -> tuple[Host, ...]:
        names = [self._moved.get(name, name) for name in seat.hosts]
        if absent := [name for name in names if name not in self._hosts]:
            raise PluginError(f"worker {seat.name} is placed on {', '.join(absent)}, which the fabric was not opened "
                              "with")
        return tuple(self._hosts[name] for name in names)

    async def chosen_again(self, seat: RaySeat) -> tuple[Host, ...]:
        self._hosts = await self._joined.hosts()
        return tuple([self._standing_in(seat, name) for name in seat.hosts])

    async def is_gone(self, host: Host) -> bool:
        """The cluster takes a moment longer to know than whoever talked to the host."""
        for _ in range(int(_SEEN_S / 0.1)):
            try:
                alive = {known.node for known in (await self._joined.hosts()).values() if known.alive}
            except TimeoutError:
                return False
            if host.node not in alive:
                return True
            await asyncio.sleep(0.1)
        return False

    def folder(self, host: str) -> Folder:
        return self._folders.setdefault(host, Folder())

    def _standing_in(self, seat: RaySeat, name: str) -> Host:
        now = self._moved.get(name, name)
        if lives(now, self._hosts):
            return self._hosts[now]
        loads = Counter(other.held.host.name for other in self._seats if other.held is not None)
        placement = seat.spec.placement
        found = successor(name, placement, self._hosts, {*self._moved.values()}, loads)
        if found is None:
            raise WorkerLost(f"host {now} is gone, and no other host may take the place of worker {seat.name}",
                             hint="hosts that are kept free (hardware.spare) take the place of lost ones")
        if found in placement.spares.get(name, ()):
            self._moved[name] = found
        return self._hosts[found]

    @property
    def _joined(self) -> Cluster:
        if self._cluster is None:
            raise PluginError("the fabric is not open")
        return self._cluster
