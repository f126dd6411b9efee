"""The smallest fabric: workers are objects of the engine's own process.

A call is a method call in the caller's task; a plain method runs at once, a deadline cancels an async one where it
waits. There are no threads, processes or sockets, so that everything runs under a virtual clock as well. A placement's
threads and environment variables have nothing to apply to here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_bench.contract import Address, Clock, GroupSpec, Placement, PlanError, WorkerContext, WorkerLost, load_object
from grpo_bench.contract.codec import pack, unpack
from grpo_bench.scratch import Scratch

from ._calls import DirectRemote, all_or_none, invoke, worker_name
from ._names import check_new_group, group_named, within_start
from ._proc import children_cpu_seconds

_CLOSE_DEADLINE_S = 10.0


class InlineGroup:
    """Workers by rank; None once closed."""

    def __init__(self, fabric: InlineFabric, spec: GroupSpec) -> None:
        self._fabric = fabric
        self._spec = spec
        self._rendezvous = Scratch()
        self._workers: list[object] = [None] * spec.placement.workers
        self._remotes = [DirectRemote(worker_name(spec.name, rank), lambda rank=rank: self._worker(rank),
                                      serialise=fabric.serialise) for rank in range(self.size)]

    @property
    def size(self) -> int:
        return len(self._workers)

    def address(self, rank: int) -> Address:
        return Address(self._spec.name, rank, "inline")

    async def call(self, rank: int, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        return await self._remotes[rank].call(method, *args, deadline_s=deadline_s, **kwargs)

    async def call_all(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> list[Any]:
        return await all_or_none([self.call(rank, method, *args, deadline_s=deadline_s, **kwargs)
                                  for rank in range(self.size)])

    async def lost(self) -> Sequence[int]:
        """None: what ends this process ends the engine."""
        return []

    async def start(self, rank: int) -> None:
        spec, fabric = self._spec, self._fabric
        name = worker_name(spec.name, rank)
        context = WorkerContext(spec.name, rank, self.size, fabric.crossing(spec.config), str(self._rendezvous.path),
                                fabric.connect, fabric.clock, fabric.logger)
        label = f"the start of worker {name}"
        self._workers[rank] = await invoke(label, lambda: load_object(spec.target)(context), (), {})

    async def restart(self, rank: int) -> None:
        await self._close_worker(rank)
        await self.start(rank)

    async def close(self) -> None:
        for rank in range(self.size):
            await self._close_worker(rank)
        self._rendezvous.remove()
        self._fabric.forget(self._spec.name)

    def remote(self, rank: int) -> DirectRemote:
        return self._remotes[rank]

    def _worker(self, rank: int) -> object:
        if self._workers[rank] is None:
            raise WorkerLost(f"worker {worker_name(self._spec.name, rank)} is closed or not started yet")
        return self._workers[rank]

    async def _close_worker(self, rank: int) -> None:
        worker = self._workers[rank]
        try:
            if callable(getattr(worker, "close", None)):
                await self._remotes[rank].call("close", deadline_s=_CLOSE_DEADLINE_S)
        except Exception as error:
            name = worker_name(self._spec.name, rank)
            self._fabric.logger.warning("worker_close_failed", worker=name, error=str(error))
        finally:
            self._workers[rank] = None


class InlineFabric:
    """Groups by name. ``serialise`` passes values through the codec, to catch what could not cross a process."""

    def __init__(self, clock: Clock, logger: Any, *, serialise: bool = False) -> None:
        self.clock = clock
        self.logger = logger
        self.serialise = serialise
        self._groups: dict[str, InlineGroup] = {}

    async def open(self, placements: Mapping[str, Placement]) -> None:
        """Nothing: this process is there."""

    async def start_group(self, spec: GroupSpec) -> InlineGroup:
        check_new_group(spec, self._groups)
        if spec.interpreter is not None:
            raise PlanError(f"group {spec.name} asks for the interpreter {spec.interpreter}, but the inline fabric has "
                            "this process only", hint="use the fabric 'local'")
        group = InlineGroup(self, spec)
        self._groups[spec.name] = group
        try:
            async with within_start(spec):
                await all_or_none([group.start(rank) for rank in range(group.size)])
        except BaseException:
            await group.close()
            raise
        return group

    async def connect(self, address: Address) -> DirectRemote:
        return group_named(address.group, self._groups).remote(address.rank)

    async def stacks(self) -> Mapping[str, str]:
        """Nothing: there is no process but the engine's."""
        return {}

    async def cpu_seconds(self) -> float:
        """CPU time of this process's children, ended or not; that of the process itself is not in it."""
        return children_cpu_seconds()

    async def close(self) -> None:
        for group in reversed(list(self._groups.values())):
            await group.close()

    def crossing(self, value: Any) -> Any:
        return unpack(pack(value)) if self.serialise else value

    def forget(self, name: str) -> None:
        self._groups.pop(name, None)
