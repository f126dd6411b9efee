"""Groups whose workers sit on seats, wherever those are.

A group has one seat for each rank, or the seats of the group it is colocated with. What a seat is made of is the
fabric's business; starting, calling, restarting and closing groups is the same for all of them.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from grpo_bench.contract import Address, DeadlineExceeded, GroupSpec, PlanError, Remote

from ._answers import pack_request
from ._calls import all_or_none, within, worker_name
from ._names import check_new_group, group_named, within_start


class GroupSeat(Protocol):
    """A place for one worker process; ``interpreter`` and ``env`` are what it was started with."""

    endpoint: str
    interpreter: str
    env: Mapping[str, str]

    async def take(self, spec: GroupSpec, rank: int, room: str) -> None:
        """Start a worker here, and the process if it is the first. ``room`` names the group's rendezvous."""
        ...

    async def leave(self, name: str) -> str:
        """Close a worker, and the process after the last one; what went wrong with that, or nothing."""
        ...

    async def restart(self) -> None:
        """Replace the process, and with it every worker that sits here."""
        ...

    async def ask(self, worker: str, request: Any) -> Any:
        """Call a worker that sits here; ``request`` is what the fabric's ``ready`` made of a packed one."""
        ...


S = TypeVar("S", bound=GroupSeat)


class SeatedGroup(Generic[S]):
    """A started group: the seats of its ranks."""

    def __init__(self, fabric: SeatedFabric[S], spec: GroupSpec, seats: Sequence[S], room: str) -> None:
        self._fabric = fabric
        self.spec = spec
        self.seats = seats
        self.room = room

    @property
    def size(self) -> int:
        return self.spec.placement.workers

    def address(self, rank: int) -> Address:
        return Address(self.spec.name, rank, self.seats[rank].endpoint)

    async def call(self, rank: int, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        request = await self._fabric.ready(pack_request(method, args, kwargs))
        return await self._ask(rank, method, request, deadline_s)

    async def call_all(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> list[Any]:
        request = await self._fabric.ready(pack_request(method, args, kwargs))
        return await all_or_none([self._ask(rank, method, request, deadline_s) for rank in range(self.size)],
                                 look_s=self._fabric.look_s)

    async def lost(self) -> Sequence[int]:
        found = await asyncio.gather(*(self._fabric.is_lost(seat) for seat in self.seats))
        return [rank for rank, lost in enumerate(found) if lost]

    async def start(self) -> None:
        async with within_start(self.spec):
            await all_or_none([seat.take(self.spec, rank, self.room) for rank, seat in enumerate(self.seats)])

    async def restart(self, rank: int) -> None:
        async with within_start(self.spec):
            await self.seats[rank].restart()

    async def close(self) -> None:
        names = [worker_name(self.spec.name, rank) for rank in range(self.size)]
        wrong = await asyncio.gather(*(seat.leave(name) for name, seat in zip(names, self.seats)))
        for name, error in zip(names, wrong):
            if error:
                self._fabric.logger.warning("worker_close_failed", worker=name, error=error)
        self._fabric.forget(self)

    async def _ask(self, rank: int, method: str, request: Any, deadline_s: float | None) -> Any:
        name = worker_name(self.spec.name, rank)
        if deadline_s is None:
            return await self.seats[rank].ask(name, request)
        async with within(deadline_s, f"{name}.{method}"):
            return await self.seats[rank].ask(name, request)


class _GroupRemote:
    """One worker of a group, as the engine calls it."""

    local = False

    def __init__(self, group: SeatedGroup[Any], rank: int) -> None:
        self._group = group
        self._rank = rank

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any:
        return await self._group.call(self._rank, method, *args, deadline_s=deadline_s, **kwargs)


class SeatedFabric(ABC, Generic[S]):
    """Groups by name. ``look_s`` says how long after one rank's failure the end of another is looked for."""

    look_s = 2.0

    def __init__(self, logger: Any) -> None:
        self.logger = logger
        self._groups: dict[str, SeatedGroup[S]] = {}
        self._rooms = 0

    @abstractmethod
    def new_seat(self, spec: GroupSpec, rank: int) -> S:
        """A seat for this rank, with nobody on it yet."""

    @abstractmethod
    async def is_lost(self, seat: S) -> bool:
        """Whether its process has ended although nobody asked for it."""

    @abstractmethod
    async def stacks(self) -> Mapping[str, str]:
        """Python stacks of every worker process."""

    async def ready(self, request: bytes) -> Any:
        """What seats take for a packed request, which may be asked of many."""
        return request

    async def start_group(self, spec: GroupSpec) -> SeatedGroup[S]:
        check_new_group(spec, self._groups)
        self._rooms += 1
        group = SeatedGroup(self, spec, self._seats_for(spec), f"{self._rooms}-{spec.name}")
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

    def forget(self, group: SeatedGroup[S]) -> None:
        if self._groups.get(group.spec.name) is group:
            del self._groups[group.spec.name]
            self.empty(group.room)

    def empty(self, room: str) -> None:
        """A closed group's rendezvous is not needed any more."""

    async def close_groups(self) -> None:
        for group in reversed(list(self._groups.values())):
            await group.close()

    def _seats_for(self, spec: GroupSpec) -> Sequence[S]:
        if spec.colocate is None:
            return [self.new_seat(spec, rank) for rank in range(spec.placement.workers)]
        seats = group_named(spec.colocate, self._groups).seats[:spec.placement.workers]
        for seat in seats:
            if spec.interpreter not in (None, seat.interpreter) or not spec.placement.env.items() <= seat.env.items():
                raise PlanError(f"group {spec.name} is to share the processes of {spec.colocate}, but asks for another "
                                "interpreter or environment")
        return seats
