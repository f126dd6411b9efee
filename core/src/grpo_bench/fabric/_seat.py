"""A place for one worker process and the workers in it.

A seat has a name, an interpreter, an environment and a socket. They outlive the process, so that a restarted worker has
the address it had before. Restarting a worker replaces its process, and with it every worker that shares it. The
process is started with the first worker and ended after the last.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence

from grpo_bench.contract import GroupSpec, PluginError, WorkerLost

from ._calls import worker_name
from ._devices import devices_variable
from ._foreign import explained
from ._process import HostProcess
from ._station import Station


class Seat:
    """What the process is started with, and who sits in it: by name the spec, the rank, and the group's room, which
    names its rendezvous. ``devices`` are GPUs that nobody else has until the seat is ``vacant``."""

    def __init__(self, station: Station, spec: GroupSpec, rank: int, number: int, devices: Sequence[str] = ()) -> None:
        self.name = worker_name(spec.name, rank)
        self.interpreter = spec.interpreter or sys.executable
        self.env: Mapping[str, str] = station.environment(spec) | devices_variable(devices)
        self.devices = devices
        self.vacant = False
        self.endpoint = station.endpoint(number)
        self._station = station
        self._occupants: dict[str, tuple[GroupSpec, int, str]] = {}
        self._process: HostProcess | None = None
        self._changing = asyncio.Lock()

    @property
    def process(self) -> HostProcess:
        if self._process is None:
            raise WorkerLost(f"worker process {self.name} is closed or just being restarted")
        return self._process

    @property
    def lost(self) -> bool:
        """Whether the process has ended although nobody ended it."""
        return self._process is not None and (self._process.exited.is_set() or self._process.peer.lost)

    async def ask(self, worker: str, request: bytes) -> object:
        """Call a worker that sits here."""
        return await self.process.peer.ask(worker, request)

    async def take(self, spec: GroupSpec, rank: int, room: str) -> None:
        """Start a worker here, and the process if it is the first."""
        self._occupants[worker_name(spec.name, rank)] = spec, rank, room
        self.vacant = False
        async with self._changing:
            if self._process is None:
                await self._launch()
        await self._start(spec, rank, room)

    async def leave(self, name: str) -> str:
        """Close a worker, and the process after the last one; what went wrong with that, or nothing."""
        async with self._changing:
            there = self._occupants.pop(name, None) is not None
            self.vacant = not self._occupants
            if not there or self._process is None:
                return ""
            try:
                if not self._process.peer.lost:
                    await self._process.control("stop", name, deadline_s=self._station.grace_s)
            except Exception as error:
                return str(error)
            finally:
                if not self._occupants:
                    await self._end()
        return ""

    async def restart(self) -> None:
        async with self._changing:
            occupants = list(self._occupants.values())
            await self._end()
            try:
                await self._launch()
                for occupant in occupants:
                    await self._start(*occupant)
            except BaseException:
                await self._end()
                raise

    async def _launch(self) -> None:
        station = self._station
        station.logs.mkdir(parents=True, exist_ok=True)
        log = station.logs / f"{self.name}.log"
        with log.open("a") as stream:
            stream.write(f"--- {station.clock.now_utc()} {self.name} starts\n")
        self._process = HostProcess(self.name, self.interpreter, self.env, log, self.endpoint, station.outside)
        station.processes.append(self._process)
        if not self._foreign:
            await self._process.greet(station.path)
            return
        try:
            await self._process.greet(())
        except WorkerLost as error:
            raise await explained(self.name, self.interpreter, error) from error

    @property
    def _foreign(self) -> bool:
        return self.interpreter != sys.executable

    async def _start(self, spec: GroupSpec, rank: int, room: str) -> None:
        if self._foreign:  # the process was started for another target, where this worker is a guest
            await self.process.control("see", [str(self._station.carried(spec.target))])
        try:
            await self._make(spec, rank, room)
        except PluginError as error:
            if self._foreign:
                error.hint = error.hint or f"it runs under {self.interpreter}"
            raise

    async def _make(self, spec: GroupSpec, rank: int, room: str) -> None:
        await self.process.control(
            "start", spec.name, rank, spec.placement.workers, spec.target, spec.config,
            str(self._station.rendezvous(room)), self._station.host)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop(self._station.grace_s)
