"""A place for one worker process and the workers in it.

A seat has a name, an interpreter, an environment and a socket. They outlive the process, so that a restarted worker has
the address it had before. Restarting a worker replaces its process, and with it every worker that shares it. The
process is started with the first worker and ended after the last.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from grpo_bench.contract import GroupSpec, PluginError, WorkerLost

from ._calls import worker_name
from ._foreign import explained
from ._process import HostProcess

if TYPE_CHECKING:
    from ._local import LocalFabric


class Seat:
    """What the process is started with, and who sits in it."""

    def __init__(self, fabric: LocalFabric, spec: GroupSpec, rank: int) -> None:
        self.name = worker_name(spec.name, rank)
        self.interpreter = spec.interpreter or sys.executable
        self.env = fabric.environment(spec)
        self._fabric = fabric
        self.endpoint = fabric.new_endpoint()
        self._occupants: dict[str, tuple[GroupSpec, int]] = {}
        self._process: HostProcess | None = None
        self._changing = asyncio.Lock()

    @property
    def process(self) -> HostProcess:
        if self._process is None:
            raise WorkerLost(f"worker process {self.name} is closed or just being restarted")
        return self._process

    async def take(self, spec: GroupSpec, rank: int) -> None:
        """Start a worker here, and the process if it is the first."""
        self._occupants[worker_name(spec.name, rank)] = spec, rank
        async with self._changing:
            if self._process is None:
                await self._launch()
        await self._start(spec, rank)

    async def leave(self, name: str) -> None:
        """Close a worker, and the process after the last one."""
        async with self._changing:
            if self._occupants.pop(name, None) is None or self._process is None:
                return
            try:
                if not self._process.peer.lost:
                    await self._process.control("stop", name, deadline_s=self._fabric.grace_s)
            except Exception as error:
                self._fabric.logger.warning("worker_close_failed", worker=name, error=str(error))
            finally:
                if not self._occupants:
                    await self._end()

    async def restart(self) -> None:
        async with self._changing:
            occupants = list(self._occupants.values())
            await self._end()
            try:
                await self._launch()
                for spec, rank in occupants:
                    await self._start(spec, rank)
            except BaseException:
                await self._end()
                raise

    async def _launch(self) -> None:
        fabric = self._fabric
        log = fabric.logs / f"{self.name}.log"
        with log.open("a") as stream:
            stream.write(f"--- {fabric.clock.now_utc()} {self.name} starts\n")
        self._process = HostProcess(self.name, self.interpreter, self.env, log, self.endpoint)
        fabric.processes.append(self._process)
        if not self._foreign:
            await self._process.greet(sys.path)
            return
        try:
            await self._process.greet(())
        except WorkerLost as error:
            raise await explained(self.name, self.interpreter, error) from error

    @property
    def _foreign(self) -> bool:
        return self.interpreter != sys.executable

    async def _start(self, spec: GroupSpec, rank: int) -> None:
        if self._foreign:  # the process was started for another target, where this worker is a guest
            await self.process.control("see", [str(self._fabric.carried(spec.target))])
        try:
            await self._make(spec, rank)
        except PluginError as error:
            if self._foreign:
                error.hint = error.hint or f"it runs under {self.interpreter}"
            raise

    async def _make(self, spec: GroupSpec, rank: int) -> None:
        await self.process.control("start", spec.name, rank, spec.placement.workers, spec.target, spec.config,
                                   str(self._fabric.rendezvous(spec.name)))

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await process.stop(self._fabric.grace_s)
