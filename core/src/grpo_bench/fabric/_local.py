"""Workers in processes of this machine.

A group has one process for each rank, or the processes of the group it is colocated with; what of a process outlives
it is its *seat*. Output goes to ``workers/<group>-<rank>.log`` in the run folder; sockets and rendezvous folders are in
a private temporary folder. GPUs are handed out in the order in which workers come. A placement's nodes have no meaning
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import Clock, GroupSpec, Placement

from ._devices import free_devices
from ._seat import Seat
from ._seated import SeatedFabric
from ._station import Station


class LocalFabric(SeatedFabric[Seat]):
    """``grace_s`` is the time a worker has for its ``close``, and its process after SIGTERM."""

    def __init__(self, run_folder: Path, clock: Clock, logger: Any, *, grace_s: float = 5.0) -> None:
        super().__init__(logger)
        self._station = Station(run_folder / "workers", clock, grace_s=grace_s)
        self._seats: list[Seat] = []

    async def open(self, placements: Mapping[str, Placement]) -> None:
        """Nothing: this machine is there."""

    def new_seat(self, spec: GroupSpec, rank: int) -> Seat:
        taken = {device for seat in self._seats if not seat.vacant for device in seat.devices}
        devices = free_devices(spec.placement.gpus, taken)
        self._seats.append(Seat(self._station, spec, rank, len(self._seats) + 1, devices))
        return self._seats[-1]

    async def is_lost(self, seat: Seat) -> bool:
        return seat.lost

    async def stacks(self) -> Mapping[str, str]:
        alive = [process for process in self._station.processes if not process.exited.is_set()]
        found = await asyncio.gather(*(process.stacks() for process in alive))
        return {process.name: text for process, text in zip(alive, found, strict=True)}

    async def cpu_seconds(self) -> float:
        """CPU time of the worker processes and all they started; the engine's own is not in it."""
        return self._station.cpu_seconds()

    def empty(self, room: str) -> None:
        self._station.empty(room)

    async def close(self) -> None:
        try:
            await self.close_groups()
        finally:
            self._station.clear()
