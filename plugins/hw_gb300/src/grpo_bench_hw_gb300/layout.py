"""Who sits where: a pure function from needs and a cluster to GPUs.

Trainer and generator share no node. What has to stay inside one domain is a *unit* of whole nodes: an engine, or a
block of ranks that belong together since they share a tensor or an expert group. Small engines and blocks share a
node. Units of the trainer go into as few domains as possible, so that what its other groups exchange rarely leaves one,
but never so that the generator would not fit. Equal needs on an equal cluster give an equal layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo_bench.contract import Need, PlanError

from .cluster import Cluster
from .units import Units, units_of

TRAINER, GENERATOR = "trainer", "generator"


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Layout:
    """By role the GPUs of each worker in turn, and those that nobody has."""

    places: Mapping[str, tuple[tuple[Gpu, ...], ...]]
    idle: tuple[Gpu, ...]

    def nodes(self, role: str) -> tuple[tuple[str, ...], ...]:
        """The nodes of each worker."""
        return tuple(tuple(dict.fromkeys(gpu.node for gpu in gpus)) for gpus in self.places[role])


def lay_out(needs: Mapping[str, Need], cluster: Cluster, policy_nodes: int = 0) -> Layout:
    """Place trainer and generator, as far as they are asked for; PlanError with the constraint that breaks."""
    total = len(cluster.nodes)
    trainer, generator = needs.get(TRAINER), needs.get(GENERATOR)
    open_nodes = policy_nodes or max(1, total // 4)
    learning = units_of(trainer, cluster.gpus, open_nodes, "rank") if trainer else None
    policy_nodes = policy_nodes or (learning.total if learning else 0)
    serving = units_of(generator, cluster.gpus, max(0, total - policy_nodes), "engine") if generator else None
    _check_room(cluster, learning, serving, policy_nodes)
    sizes = [len(domain.nodes) for domain in cluster.domains]
    shares = _shares(sizes, learning, serving)
    if shares is None:
        assert learning and serving
        raise PlanError(f"{serving.count} units of {serving.nodes} nodes for {serving.what} do not fit into the "
                        f"domains of {', '.join(map(str, sizes))} nodes beside {learning.count} units of "
                        f"{learning.nodes} for {learning.what}: each has to stay inside one domain",
                        hint="change hardware.policy_nodes, or ask for whole domains")
    return _assigned(cluster, shares, learning, serving)


def _check_room(cluster: Cluster, learning: Units | None, serving: Units | None, policy_nodes: int) -> None:
    total, largest = len(cluster.nodes), max(len(domain.nodes) for domain in cluster.domains)
    for units, room, key in ((learning, min(policy_nodes, total), "hardware.policy_nodes"),
                             (serving, total - policy_nodes, "hardware.nodes")):
        if units is None:
            continue
        if units.nodes > largest:
            raise PlanError(f"{units.unit} takes {units.nodes} nodes, and the largest domain has {largest}: it has to "
                            "stay inside one domain", hint="see hardware.nodes_per_domain and hardware.segment")
        if units.total > room:
            raise PlanError(f"{units.what} take {units.total} nodes of {cluster.gpus} GPUs, and "
                            f"{max(0, room)} of {total} are for them", hint=f"see {key}")


def _shares(sizes: Sequence[int], learning: Units | None, serving: Units | None) -> list[int] | None:
    """How many of the trainer's units each domain takes so that the generator's fit too; None: they never do."""
    count, nodes = (learning.count, learning.nodes) if learning else (0, 1)
    wanted, per = (serving.count, serving.nodes) if serving else (0, 1)
    left, filled = count, [0] * len(sizes)
    for domain in sorted(range(len(sizes)), key=lambda number: -(sizes[number] // nodes)):
        filled[domain] = min(left, sizes[domain] // nodes)
        left -= filled[domain]
    if left:
        raise PlanError(f"{learning.what if learning else ''} are {count} units of {nodes} nodes that stay inside one "
                        f"domain each, and domains of {', '.join(map(str, sizes))} nodes take {count - left}",
                        hint="ask for whole domains, or spread experts over fewer ranks")
    if sum((size - share * nodes) // per for size, share in zip(sizes, filled, strict=True)) >= wanted:
        return filled
    return _roomiest(sizes, count, nodes, per, wanted)


def _roomiest(sizes: Sequence[int], count: int, nodes: int, per: int, wanted: int) -> list[int] | None:
    """The shares that leave room for most units of ``per`` nodes: most[k] counts them with k units placed so far."""
    most: list[int | None] = [0] + [None] * count
    chosen: list[list[int]] = []
    for size in sizes:
        after: list[int | None] = [None] * (count + 1)
        choice = [0] * (count + 1)
        for placed, room in enumerate(most):
            if room is None:
                continue
            for share in range(min(count - placed, size // nodes) + 1):
                found, at = room + (size - share * nodes) // per, placed + share
                best = after[at]
                if best is None or found > best:
                    after[at], choice[at] = found, share
        most = after
        chosen.append(choice)
    if (most[count] or 0) < wanted:
        return None
    shares = []
    for choice in reversed(chosen):
        shares.append(choice[count])
        count -= choice[count]
    return shares[::-1]


def _assigned(cluster: Cluster, shares: Sequence[int], learning: Units | None, serving: Units | None) -> Layout:
    """In each domain the trainer's units come first, then the generator's."""
    found: dict[str, dict[int, tuple[Gpu, ...]]] = {TRAINER: {}, GENERATOR: {}}
    learners, servers = iter(learning.members if learning else ()), iter(serving.members if serving else ())
    free: list[Gpu] = []
    for domain, share in zip(cluster.domains, shares, strict=True):
        nodes = iter(domain.nodes)
        room = len(domain.nodes)
        for role, units, waiting, most in ((TRAINER, learning, learners, share), (GENERATOR, serving, servers, None)):
            if units is None:
                continue
            fitting = room // units.nodes if most is None else most
            for members in islice(waiting, fitting):
                gpus = [Gpu(node, index) for node in islice(nodes, units.nodes) for index in range(cluster.gpus)]
                free += _seat(members, gpus, units.gpus, found[role])
                room -= units.nodes
        free += [Gpu(node, index) for node in nodes for index in range(cluster.gpus)]
    places = {role: tuple(seats[worker] for worker in sorted(seats)) for role, units, seats in (
        (TRAINER, learning, found[TRAINER]), (GENERATOR, serving, found[GENERATOR])) if units is not None}
    return Layout(places, tuple(free))


def _seat(members: Sequence[int], gpus: Sequence[Gpu], each: int, seats: dict[int, tuple[Gpu, ...]]) -> Iterator[Gpu]:
    """Give the workers of one unit their GPUs; returns those left over."""
    waiting = iter(gpus)
    for worker in members:
        seats[worker] = tuple(islice(waiting, each))
    return waiting
