"""Where workers run.

A *worker group* is ``count`` workers of one kind. A worker is an object made by a function named ``module:function``
inside some process; its public async or plain methods can be called from the engine through a :class:`WorkerGroup` and
from other workers through an :class:`Address`. Values cross as msgpack with raw array buffers
(:mod:`grpo_bench.contract.codec`), never as pickle, so interpreters may differ. Workers of one group that is
``colocate``-d with another share its processes, rank by rank, and then call each other without serialising.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a group's workers sit: how many, threads each, and environment variables they start with.

    ``nodes`` names the hosts of each worker in turn, equally many for every worker, and is empty where all are on this
    one. A worker has ``gpus`` GPUs, equally many on each of its hosts, of those that no earlier worker took; 0: it
    shares those that are there. ``spares`` says by host which hosts that nobody sits on may take its place where it is
    lost, in that order."""

    workers: int = 1
    threads: int = 1
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    spares: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def hosts(self) -> tuple[tuple[str, ...], ...]:
        """The hosts of each worker; empty where all workers are on this one."""
        each = len(self.nodes) // self.workers
        return tuple(self.nodes[start:start + each] for start in range(0, len(self.nodes), each)) if each else ()

    @property
    def gpus_per_host(self) -> int:
        """GPUs that a worker has on each of its hosts."""
        return self.gpus // max(1, len(self.nodes) // self.workers)


@dataclass(frozen=True, slots=True)
class Need:
    """What a worker group asks of the machine: how many workers (0: as many as suits the machine), GPUs of each
    (0: not said), and which of them talk to each other, by kind. Ranks of a ``tensor`` group exchange most, those of
    an ``expert`` group next; others, such as ``pipeline`` and ``data``, less."""

    workers: int = 0
    gpus: int = 0
    groups: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A worker group to start. ``target`` is ``module:function`` and gets a :class:`WorkerContext`; ``interpreter`` is
    a python path (None: the engine's own). Another interpreter finds of the engine's packages grpo_bench, pluggy and
    the top-level one of ``target``, and nothing else; the start may take ``start_deadline_s``, and so may a restart."""

    name: str
    target: str
    config: Any
    placement: Placement
    interpreter: str | None = None
    colocate: str | None = None
    start_deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class Address:
    """A worker that can be called from any process of the run. ``endpoint`` is fabric-specific."""

    group: str
    rank: int
    endpoint: str


class Remote(Protocol):
    """One worker, callable. An exception of the worker's method is raised here as PluginError (GrpoBenchErrors keep
    their type); a dead worker raises WorkerLost; a call that passes ``deadline_s`` is cancelled: DeadlineExceeded."""

    @property
    def local(self) -> bool:
        """Whether the worker lives in the caller's process, so that a call serialises nothing."""
        ...

    async def call(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> Any: ...


class WorkerGroup(Protocol):
    """A started group."""

    @property
    def size(self) -> int: ...

    def address(self, rank: int) -> Address: ...

    async def call(self, rank: int, method: str, /, *args: Any, deadline_s: float | None = None,
                   **kwargs: Any) -> Any: ...

    async def call_all(self, method: str, /, *args: Any, deadline_s: float | None = None, **kwargs: Any) -> list[Any]:
        """Call on every worker at once; results by rank. The first failure cancels the others and is raised."""
        ...

    async def lost(self) -> Sequence[int]:
        """Ranks whose process has ended although nobody asked for it. A fabric that learns of a host's end only after a
        while waits that long first, and no longer."""
        ...

    async def restart(self, rank: int) -> None:
        """Replace one worker by a new one of the same spec; WorkerLost where no host is left for it. Several ranks may
        be under way at a time, and a call may be cancelled."""
        ...

    async def close(self) -> None:
        """Call ``close`` on workers that have it, then end the processes, by force after a grace time."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """What a scheduler is asked for so that a run finds its machine: ``nodes`` with ``gpus`` GPUs each, in ``segment``
    nodes that share a network domain (0: any will do), and ``env``, which every process starts with, those of the
    fabric included."""

    nodes: int = 1
    gpus: int = 0
    segment: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


class FabricHandle(Protocol):
    """Starts groups and reaches workers."""

    async def open(self, placements: Mapping[str, Placement]) -> None:
        """Reach the hosts of these placements and see that what they place is there; called once, before the first
        group. PlanError that says what is missing where that is not so in time."""
        ...

    async def start_group(self, spec: GroupSpec) -> WorkerGroup: ...

    async def connect(self, address: Address) -> Remote: ...

    async def stacks(self) -> Mapping[str, str]:
        """Python stacks of every worker process, for hang reports."""
        ...

    async def cpu_seconds(self) -> float:
        """CPU time of all worker processes, ended ones and their children included."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class WorkerContext:
    """What a worker's target function gets."""

    group: str
    rank: int
    size: int
    config: Any
    rendezvous: str
    """A folder shared by the group's workers on one host, empty at start."""
    connect: Any
    """``async connect(address) -> Remote``; a worker of this process is returned without serialisation."""
    clock: Any
    logger: Any
    interpreter: str | None = None
    """For a part made inside a worker: the python of its own environment, for programs that it starts."""
    run_folder: str = ""
    """For a part made inside a worker: the run's folder, for what it keeps there; empty where there is none."""
    host: str = "127.0.0.1"
    """The address at which workers on other hosts reach this worker's; the loopback where the fabric has one host."""
