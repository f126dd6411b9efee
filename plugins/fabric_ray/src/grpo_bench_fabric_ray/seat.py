"""One seat as the driver sees it: a place in the cluster, the actor that holds it, and who sits there.

A place is a placement group with a bundle for each host of the worker: the actor has the first bundle and its GPUs,
which are those of the worker process; the others hold what the worker has on further hosts. Where actor or host are
gone, the seat moves: to the same host if that lives, else to the one that the fabric names.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from grpo_bench.contract import GroupSpec, GrpoBenchError, PlanError, PluginError, WorkerLost
from grpo_bench.fabric.kit import read_answer, variables, worker_name

from .actor import SeatActor, actor_name, steering
from .aside import aside, asked
from .hosts import Host

PLACE_S = 120.0
"""Longest time in which the cluster gives a place on a host that is there."""
TELL_S = 3.0
"""Longest time in which an actor says something about its process."""
_CPU = 0.001
"""What a bundle asks of Ray's own count of cores: the hardware placed the workers."""
_CALLS = 10_000


class Gone(WorkerLost):
    """The actor, its host or the cluster is gone."""


@dataclass(frozen=True)
class Held:
    """A place with an actor in it."""

    actor: Any
    group: Any
    host: Host


@dataclass
class Folder:
    """The private folder that all seats of one host share; empty until the first has made it."""

    path: str = ""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Floor(Protocol):
    """What a seat knows of the fabric. ``settings`` is what every actor is told; ``look_s`` how long a host's end may
    go unnoticed."""

    grace_s: float
    look_s: float
    logs: Path

    @property
    def settings(self) -> dict[str, Any]: ...

    def chosen(self, seat: RaySeat) -> tuple[Host, ...]:
        """Where a seat is first."""
        ...

    async def chosen_again(self, seat: RaySeat) -> tuple[Host, ...]:
        """Where a seat is after its actor was lost: on the same hosts, and others for those that are gone."""
        ...

    async def is_gone(self, host: Host) -> bool:
        """Whether the cluster says that a host is dead."""
        ...

    def folder(self, host: str) -> Folder: ...


class RaySeat:
    """``hosts`` are the names of the worker's hosts, as they were placed."""

    def __init__(self, fabric: Floor, spec: GroupSpec, rank: int, number: int, hosts: tuple[str, ...]) -> None:
        self.name = worker_name(spec.name, rank)
        self.interpreter = spec.interpreter or sys.executable
        self.env: Mapping[str, str] = variables(spec.placement)
        self.endpoint = ""
        self.spec = spec
        self.hosts = hosts
        self.held: Held | None = None
        self._number = number
        self._rank = rank
        self._fabric = fabric
        self._occupants: dict[str, tuple[GroupSpec, int, str]] = {}
        self._changing = asyncio.Lock()
        self._ended_cpu_s = self._running_cpu_s = 0.0

    async def take(self, spec: GroupSpec, rank: int, room: str) -> None:
        self._occupants[worker_name(spec.name, rank)] = spec, rank, room
        async with self._changing:
            if self.held is None:
                await self._sit(self._fabric.chosen(self))
        await self._steer("take", spec, rank, room)

    async def leave(self, name: str) -> str:
        async with self._changing:
            if self._occupants.pop(name, None) is None or self.held is None:
                return ""
            try:
                async with asyncio.timeout(3 * self._fabric.grace_s + TELL_S):
                    return await self._steer("leave", name)
            except Gone:
                return ""
            except (GrpoBenchError, TimeoutError) as error:
                return str(error) or "its host does not answer"
            finally:
                if not self._occupants:
                    await self._release()

    async def restart(self) -> None:
        async with self._changing:
            if self.held is not None:
                try:
                    await self._steer("restart")
                    return
                except Gone:
                    await self._release()
            await self._sit(await self._fabric.chosen_again(self))
            try:
                for occupant in self._occupants.values():
                    await self._steer("take", *occupant)
            except BaseException:
                await self._release()
                raise

    async def ask(self, worker: str, request: Any) -> Any:
        if self.held is None:
            raise WorkerLost(f"worker process {self.name} is closed or just being restarted")
        return read_answer(await self._asked(self.held, self.held.actor.ask, worker, request))

    async def lost(self) -> bool:
        """Whether the process has ended although nobody ended it; a host that is silent for too long is lost."""
        if self.held is None:
            return bool(self._occupants)
        try:
            async with asyncio.timeout(self._fabric.look_s):
                return await self._steer("lost")
        except (Gone, TimeoutError):
            return True

    async def stacks(self) -> str:
        try:
            async with asyncio.timeout(TELL_S):
                return await self._steer("stacks")
        except (GrpoBenchError, TimeoutError) as error:
            return str(error) or "its host does not answer"

    async def cpu_seconds(self) -> float:
        """CPU time of all processes that were here; where the host does not answer, as it was known last."""
        if self.held is not None:
            with suppress(GrpoBenchError, TimeoutError):
                async with asyncio.timeout(TELL_S):
                    self._running_cpu_s = await self._steer("cpu_seconds")
        return self._ended_cpu_s + self._running_cpu_s

    async def _sit(self, hosts: tuple[Host, ...]) -> None:
        """Take a place on these hosts, and put an actor there."""
        group = await self._place(hosts)
        try:
            actor = await self._start_actor(group)
        except BaseException:
            await self._remove(group)
            raise
        self.held = Held(actor, group, hosts[0])
        try:
            shared = self._fabric.folder(hosts[0].name)
            async with shared.lock:
                self.endpoint, shared.path = await self._steer("sit", {
                    **self._fabric.settings, "number": self._number, "place": hosts[0].name, "host": hosts[0].address,
                    "shared": shared.path}, self.spec, self._rank)
        except BaseException:
            await self._release()
            raise

    async def _place(self, hosts: tuple[Host, ...]) -> Any:
        from ray.util.placement_group import placement_group

        gpus = self.spec.placement.gpus_per_host
        bundles = [{"CPU": _CPU, **({"GPU": float(gpus)} if gpus else {})} for _ in hosts]
        labels = [host.selector for host in hosts]
        group = await aside(PLACE_S, lambda: placement_group(
            bundles, strategy="STRICT_SPREAD" if len(hosts) > 1 else "PACK", bundle_label_selector=labels))
        try:
            placed = await aside(PLACE_S + TELL_S, group.wait, PLACE_S)
        except BaseException:
            await self._remove(group)
            raise
        if not placed:
            await self._remove(group)
            names = ", ".join(host.name for host in hosts)
            what = f"the {gpus} GPUs that it needs there" if gpus else "all CPUs there"
            raise PlanError(f"the cluster gave worker {self.name} no place on {names} in {PLACE_S:g} s: others hold "
                            f"{what}", hint="`ray status` says who holds what")
        return group

    async def _start_actor(self, group: Any) -> Any:
        """An actor in the first bundle. The name of one that just ended takes a moment to be free again."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = ray.remote(SeatActor).options(
            name=actor_name(self._number), num_cpus=0, num_gpus=self.spec.placement.gpus_per_host,
            max_concurrency=_CALLS, max_restarts=0, max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0))
        for wait_s in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0):
            with suppress(ValueError):
                return await aside(PLACE_S, options.remote)
            await asyncio.sleep(wait_s)
        raise PluginError(f"the name of {self.name}'s actor is in use")

    async def _release(self) -> None:
        """Give the place back, whatever is left there."""
        held, self.held = self.held, None
        if held is None:
            return
        import ray

        with suppress(GrpoBenchError, TimeoutError):
            async with asyncio.timeout(TELL_S):
                self._running_cpu_s = read_answer(await self._asked(held, held.actor.steer, steering("clear")))
        self._ended_cpu_s += self._running_cpu_s
        self._running_cpu_s = 0.0
        with suppress(Exception):  # of whatever kind: it is gone already
            await aside(TELL_S, ray.kill, held.actor)
        await self._remove(held.group)

    @staticmethod
    async def _remove(group: Any) -> None:
        from ray.util.placement_group import remove_placement_group

        with suppress(Exception):  # the cluster is gone
            await aside(TELL_S, remove_placement_group, group)

    async def _steer(self, method: str, *args: Any) -> Any:
        if self.held is None:
            raise Gone(f"worker process {self.name} is closed")
        return read_answer(await self._asked(self.held, self.held.actor.steer, steering(method, *args)))

    async def _asked(self, held: Held, method: Any, *args: Any) -> bytes:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await asked(method, *args)
        except RayTaskError as error:
            raise PluginError(f"the actor of worker process {self.name} failed: {error}") from error
        except RayError as error:
            raise await self._explained(held, error) from error

    async def _explained(self, held: Held, error: Exception) -> Gone:
        host, said = held.host.name, str(error).strip().splitlines()
        if await self._fabric.is_gone(held.host):
            message = f"host {host} is gone, and with it worker process {self.name}"
        else:
            message = (f"worker process {self.name} on {host} was lost together with the Ray actor that held it "
                       f"({type(error).__name__}: {said[0] if said else ''})")
        return Gone(message, hint=f"its output is in {self._fabric.logs / self.name}.log")
