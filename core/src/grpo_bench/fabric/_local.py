"""Workers in processes of this machine.

A group has one process for each rank, or the processes of the group it is colocated with; what of a process outlives
it is its *seat*. Output goes to ``workers/<group>-<rank>.log`` in the run folder; sockets and rendezvous folders are in
a private temporary folder. A placement's nodes have no meaning here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import Address, Clock, DeadlineExceeded, GroupSpec, Placement, PlanError, Remote, WorkerGroup
from grpo_bench.scratch import Scratch

from ._calls import all_or_none, worker_name
from ._foreign import carried
from ._names import check_new_group, group_named, within_start
from ._proc import table
from ._process import HostProcess
from ._seat import Seat

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
            "VECLIB_MAXIMUM_THREADS")
_LOOK_S = 2.0
"""How long after one rank's failure the end of another is looked for."""


class LocalGroup:
    """A started group: the seats of its ranks."""

    def __init__(self, fabric: LocalFabric, spec: GroupSpec, seats: list[Seat]) -> None:
        self._fabric = fabric
        self.spec = spec
        self.seats = seats

    @property
    def size(self) -> int:
        return self.spec.placement.workers

    def address(self, rank: int) -> Address:
        return Address(self.spec.name, rank, self.seats[rank].endpoint)

    async def call(self, rank: int, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        name = worker_name(self.spec.name, rank)
        return await self.seats[rank].process.peer.call(name, method, args, kwargs, deadline_s)

    async def call_all(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> list[Any]:
        return await all_or_none([self.call(rank, method, *args, deadline_s=deadline_s, **kwargs)
                                  for rank in range(self.size)], look_s=_LOOK_S)

    async def start(self) -> None:
        async with within_start(self.spec):
            await all_or_none([seat.take(self.spec, rank) for rank, seat in enumerate(self.seats)])

    async def restart(self, rank: int) -> None:
        async with within_start(self.spec):
            await self.seats[rank].restart()

    async def close(self) -> None:
        await asyncio.gather(*(seat.leave(worker_name(self.spec.name, rank)) for rank, seat in enumerate(self.seats)))
        self._fabric.forget(self.spec.name)


class _GroupRemote:
    """One worker of a group, as the engine calls it."""

    local = False

    def __init__(self, group: LocalGroup, rank: int) -> None:
        self._group = group
        self._rank = rank

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        return await self._group.call(self._rank, method, *args, deadline_s=deadline_s, **kwargs)


class LocalFabric:
    """Groups by name. ``grace_s`` is the time a worker has for its ``close``, and its process after SIGTERM."""

    def __init__(self, run_folder: Path, clock: Clock, logger: Any, *, grace_s: float = 5.0) -> None:
        self.clock = clock
        self.logger = logger
        self.grace_s = grace_s
        self.logs = run_folder / "workers"
        self.processes: list[HostProcess] = []
        self._groups: dict[str, LocalGroup] = {}
        self._scratch: Scratch | None = None
        self._seats = 0

    async def open(self, placements: Mapping[str, Placement]) -> None:
        """Nothing: this machine is there."""

    async def start_group(self, spec: GroupSpec) -> WorkerGroup:
        check_new_group(spec, self._groups)
        self.logs.mkdir(parents=True, exist_ok=True)
        group = LocalGroup(self, spec, self._seats_for(spec))
        self._groups[spec.name] = group
        try:
            await group.start()
        except BaseException as error:
            if isinstance(error, DeadlineExceeded):
                error.add_note("\n".join(f"{name}: {stacks}" for name, stacks in (await self.stacks()).items()))
            await group.close()
            raise
        return group

    async def connect(self, address: Address) -> Remote:
        return _GroupRemote(group_named(address.group, self._groups), address.rank)

    async def stacks(self) -> Mapping[str, str]:
        alive = [process for process in self.processes if not process.exited.is_set()]
        found = await asyncio.gather(*(process.stacks() for process in alive))
        return {process.name: text for process, text in zip(alive, found, strict=True)}

    async def cpu_seconds(self) -> float:
        """CPU time of the worker processes and all they started; the engine's own is not in it."""
        processes = table()
        return sum(process.cpu_seconds(processes) for process in self.processes)

    async def close(self) -> None:
        try:
            for group in reversed(list(self._groups.values())):
                await group.close()
        finally:
            if self._scratch is not None:
                self._scratch.remove()
                self._scratch = None

    def environment(self, spec: GroupSpec) -> dict[str, str]:
        """What a process of this group starts with."""
        threads = dict.fromkeys(_THREADS, str(spec.placement.threads))
        env = {**os.environ, **threads, **spec.placement.env}
        if spec.interpreter not in (None, sys.executable):
            path = [str(self.carried(spec.target)), *filter(None, [env.get("PYTHONPATH")])]
            env["PYTHONPATH"] = os.pathsep.join(path)
        return env

    def carried(self, target: str) -> Path:
        """What goes onto the path of another interpreter for a worker with this target."""
        return carried(self._private() / "packages", target)

    def new_endpoint(self) -> str:
        self._seats += 1
        return str(self._private() / f"{self._seats}.sock")

    def rendezvous(self, group: str) -> Path:
        folder = self._private() / "rendezvous" / group
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget(self, name: str) -> None:
        if self._groups.pop(name, None) is not None:
            shutil.rmtree(self.rendezvous(name), ignore_errors=True)

    def _seats_for(self, spec: GroupSpec) -> list[Seat]:
        if spec.colocate is None:
            return [Seat(self, spec, rank) for rank in range(spec.placement.workers)]
        seats = group_named(spec.colocate, self._groups).seats[:spec.placement.workers]
        for seat in seats:
            if spec.interpreter not in (None, seat.interpreter) or not spec.placement.env.items() <= seat.env.items():
                raise PlanError(f"group {spec.name} is to share the processes of {spec.colocate}, but asks for another "
                                "interpreter or environment")
        return seats

    def _private(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch()
        return self._scratch.path
