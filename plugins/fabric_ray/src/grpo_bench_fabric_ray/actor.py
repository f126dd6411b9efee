"""The Ray side of one seat: an actor that starts a worker process on its host, speaks to it, watches and ends it.

The actor holds the place and the GPUs, the process does the work; should the actor end, the process ends itself. All
that crosses is bytes: requests and answers of workers are relayed as they are, and whatever is raised here travels as
data in an answer, never as a pickled exception. A call of the process to a worker elsewhere goes to that worker's
actor, which is found by the number of its seat, wherever it is now.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from grpo_bench.contract import Address, GroupSpec, PluginError, WorkerLost
from grpo_bench.contract.codec import unpack
from grpo_bench.fabric.kit import HostClock, Seat, Station, answer_to, pack_request, refusal, worker_name
from grpo_bench.scratch import Scratch

from .aside import aside, asked

FIND_S = 30.0
"""Longest time in which the cluster says where an actor is."""


def actor_name(number: int | str) -> str:
    return f"seat-{number}"


def seat_number(address: Address) -> str:
    """The socket of a seat has its number for a name, on whatever host."""
    return Path(address.endpoint).stem


class SeatActor:
    """Two methods, both from bytes to bytes: ``ask`` a worker, and ``steer`` the seat."""

    def __init__(self) -> None:
        _leave_children_alone()
        self._steering = Steering()

    async def ask(self, worker: str, request: bytes) -> bytes:
        try:
            return await self._steering.relay(worker, request)
        except Exception as error:
            return refusal(error, "a call")

    async def steer(self, request: bytes) -> bytes:
        method, args, _ = unpack(request)
        return await answer_to(method, getattr(self._steering, method), args, {})


def _leave_children_alone() -> None:
    """Ray would kill the worker process together with this one, before that has ended all that it started itself."""
    from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue]

    Config.initialize('{"kill_child_processes_on_worker_exit": false}')


class Steering:
    """What the driver does with the seat."""

    def __init__(self) -> None:
        self._seat: Seat | None = None
        self._station: Station | None = None

    def sit(self, settings: dict[str, Any], spec: GroupSpec, rank: int) -> list[str]:
        """Make the seat; its endpoint, and the folder that seats of this host share."""
        if os.path.isdir(settings["cwd"]):
            os.chdir(settings["cwd"])
        shared = settings["shared"]
        scratch = Scratch(shared=Path(shared) if shared else None)
        self._station = Station(
            Path(settings["logs"]), HostClock(), grace_s=settings["grace_s"], path=settings["path"],
            place=settings["place"], host=settings["host"], outside=Outside(settings["namespace"]), scratch=scratch)
        self._seat = Seat(self._station, spec, rank, settings["number"])
        return [self._seat.endpoint, str(scratch.path)]

    async def take(self, spec: GroupSpec, rank: int, room: str) -> None:
        await self._here.take(spec, rank, room)

    async def leave(self, name: str) -> str:
        return await self._here.leave(name)

    async def restart(self) -> None:
        await self._here.restart()

    async def relay(self, worker: str, request: bytes) -> bytes:
        return await self._here.process.peer.relay(worker, request)

    async def stacks(self) -> str:
        return await self._here.process.stacks()

    def lost(self) -> bool:
        return self._here.lost

    def cpu_seconds(self) -> float:
        return 0.0 if self._station is None else self._station.cpu_seconds()

    def clear(self) -> float:
        """Give back what is left when nobody sits here any more; CPU time in all."""
        used = self.cpu_seconds()
        if self._station is not None:
            self._station.clear()
        return used

    @property
    def _here(self) -> Seat:
        if self._seat is None:
            raise PluginError("nobody made this seat yet")
        return self._seat


class Outside:
    """Where a worker process turns for workers of other hosts."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    async def forward(self, address: Address, request: bytes) -> bytes:
        import ray
        from ray.exceptions import RayError

        name = worker_name(address.group, address.rank)
        try:
            actor = await aside(FIND_S, lambda: ray.get_actor(actor_name(seat_number(address)), self._namespace))
            return await asked(actor.ask, name, request)
        except (RayError, ValueError, TimeoutError) as error:
            raise WorkerLost(f"worker {name} is not reached: its process or its host is gone "
                             f"({type(error).__name__})") from error


def steering(method: str, *args: Any) -> bytes:
    """The request that ``steer`` takes."""
    return pack_request(method, args, {})
