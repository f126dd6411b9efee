"""Who sits where: a pure function from needs and a cluster to GPUs.

Trainer and generator share no node, unless there is only one: then they share no GPU. What has to stay inside one
domain is a *unit* of whole nodes: an engine, or a block of ranks that belong together since they share a tensor or an
expert group. Small engines and blocks share a node. Which domain each unit goes to, :mod:`.dealing` says; within a
domain the trainer's come first, then the generator's, then nodes that nobody has. Equal needs on an equal cluster give
an equal layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from grpo_bench.contract import Need, PlanError

from .cluster import Cluster, Domain
from .dealing import deal, engines, links_of, roomiest
from .units import Units, units_of

TRAINER, GENERATOR = "trainer", "generator"


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """A GPU, or on a node without GPUs the place of a worker."""

    node: str
    index: int


@dataclass(frozen=True, slots=True)
class Layout:
    """By role the GPUs of each worker in turn. Nobody sits on ``spares``. Nodes that are ``bound`` belong to a unit of
    several nodes, which stays inside one domain."""

    cluster: Cluster
    places: Mapping[str, tuple[tuple[Gpu, ...], ...]]
    spares: tuple[str, ...]
    bound: frozenset[str]

    def nodes(self, role: str) -> tuple[tuple[str, ...], ...]:
        """The nodes of each worker."""
        return tuple(tuple(dict.fromkeys(gpu.node for gpu in gpus)) for gpus in self.places[role])

    @property
    def idle(self) -> tuple[Gpu, ...]:
        """GPUs that nobody has, on nodes that are in use."""
        taken = {gpu for workers in self.places.values() for gpus in workers for gpu in gpus}
        seats = (Gpu(node, index) for node in self.cluster.nodes for index in range(self.cluster.gpus))
        return tuple(gpu for gpu in seats if gpu not in taken and gpu.node not in self.spares)


def lay_out(needs: Mapping[str, Need], cluster: Cluster, policy_nodes: int = 0, generation_nodes: int = 0,
            spare: int = 0) -> Layout:
    """Place trainer and generator, as far as they are asked for; PlanError with the constraint that breaks."""
    needs = {role: needs[role] for role in (TRAINER, GENERATOR) if role in needs}
    if len(cluster.nodes) == 1 and len(needs) > 1:
        return _on_one_node(needs, cluster)
    return _laid_out(needs, cluster, _Words(), policy_nodes, generation_nodes, spare)


@dataclass(frozen=True, slots=True)
class _Words:
    """How refusals call nodes and domains."""

    node: str = "node"
    domain: str = "domain"

    def nodes(self, gpus: int) -> str:
        return f"{self.node}s of {gpus} GPUs" if self.node == "node" and gpus else f"{self.node}s"


def _on_one_node(needs: Mapping[str, Need], cluster: Cluster) -> Layout:
    """A node's GPUs are dealt out as nodes of one GPU each would be."""
    node, = cluster.nodes
    if not cluster.gpus:
        raise PlanError("one node without GPUs is nothing that trainer and generator could share out",
                        hint="see hardware.nodes and hardware.gpus_per_node, or take hardware.use = \"local\"")
    gpus = tuple(map(str, range(cluster.gpus)))
    found = _laid_out(needs, Cluster((Domain(node, gpus),), 1), _Words("GPU", "node"), 0, 0, 0)
    places = {role: tuple(tuple(Gpu(node, int(gpu.node)) for gpu in seats) for seats in workers)
              for role, workers in found.places.items()}
    return Layout(cluster, places, (), frozenset())


def _laid_out(needs: Mapping[str, Need], cluster: Cluster, words: _Words, policy_nodes: int, generation_nodes: int,
              spare: int) -> Layout:
    trainer, generator = needs.get(TRAINER), needs.get(GENERATOR)
    total = len(cluster.nodes) - spare
    others = generation_nodes or total - max(1, total // 4) if generator else 0
    learning = units_of(trainer, cluster.gpus, policy_nodes or total - others, "rank") if trainer else None
    room = policy_nodes or total - (generation_nodes if generator else 0)
    _check_room(cluster, words, learning, room, "hardware.policy_nodes" if policy_nodes else "hardware.nodes")
    room = generation_nodes or total - (policy_nodes or (learning.total if learning else 0))
    serving = units_of(generator, cluster.gpus, room, "engine") if generator else None
    _check_room(cluster, words, serving, room, "hardware.generation_nodes" if generation_nodes else "hardware.nodes")
    wanted = serving.count if serving else 0
    dealt: list[int] | None = []
    if learning:
        _check_domains(cluster, words, learning)
        per = serving.nodes if serving else 1
        wanted = _fitting(cluster, learning, serving, generator)
        dealt = deal(cluster.sizes, learning, per, wanted, links_of(trainer, learning))
    elif serving:
        wanted = _fitting(cluster, None, serving, generator)
        dealt = [] if sum(size // serving.nodes for size in cluster.sizes) >= wanted else None
    if dealt is None:
        raise _refused(cluster, words, learning, serving)
    return _assigned(cluster, dealt, learning, serving, wanted)


def _fitting(cluster: Cluster, learning: Units | None, serving: Units | None, need: Need | None) -> int:
    """Units of the generator that are placed: where it leaves the number open no more than fit."""
    if serving is None or need is None:
        return 0
    if need.workers:
        return serving.count
    count, nodes = (learning.count, learning.nodes) if learning else (0, 1)
    return max(1, min(serving.count, roomiest(cluster.sizes, count, nodes, serving.nodes)[1]))


def _check_room(cluster: Cluster, words: _Words, units: Units | None, room: int, key: str) -> None:
    if units is None:
        return
    nodes, largest = words.nodes(cluster.gpus), max(cluster.sizes)
    if units.nodes > largest:
        raise PlanError(f"{units.unit} takes {units.nodes} {words.node}s, and the largest {words.domain} has "
                        f"{largest}: it has to stay inside one {words.domain}",
                        hint="see hardware.nodes_per_domain and hardware.segment, or lower what it takes"
                             if words.node == "node" else "see hardware.gpus_per_node, or lower what it takes")
    if units.total > room:
        raise PlanError(f"{units.what} take {units.total} {nodes}, and {max(0, room)} of {sum(cluster.sizes)} are for "
                        "them", hint=f"see {key}")


def _check_domains(cluster: Cluster, words: _Words, units: Units) -> None:
    taken = sum(size // units.nodes for size in cluster.sizes)
    if taken < units.count:
        raise PlanError(f"{units.what} are {units.count} units of {units.nodes} {words.node}s that stay inside one "
                        f"{words.domain} each, and {words.domain}s of {_sizes(cluster)} {words.node}s take {taken}",
                        hint="ask for whole domains (see hardware.segment), or spread experts over fewer ranks")


def _refused(cluster: Cluster, words: _Words, learning: Units | None, serving: Units | None) -> PlanError:
    assert serving
    beside = f" beside {learning.count} units of {learning.nodes} for {learning.what}" if learning else ""
    return PlanError(f"{serving.count} units of {serving.nodes} {words.node}s for {serving.what} do not fit into the "
                     f"{words.domain}s of {_sizes(cluster)} {words.node}s{beside}: each has to stay inside one "
                     f"{words.domain}", hint="change hardware.policy_nodes, or ask for whole domains (see "
                                             "hardware.segment)")


def _sizes(cluster: Cluster) -> str:
    return ", ".join(map(str, cluster.sizes))


def _assigned(cluster: Cluster, dealt: Sequence[int], learning: Units | None, serving: Units | None,
              wanted: int) -> Layout:
    seats: dict[str, dict[int, tuple[Gpu, ...]]] = {TRAINER: {}, GENERATOR: {}}
    shares = [dealt.count(domain) for domain in range(len(cluster.domains))]
    free = [size - share * (learning.nodes if learning else 0) for size, share in zip(cluster.sizes, shares)]
    held = [bool(share and learning and learning.nodes > 1) for share in shares]
    engined = engines(free, serving.nodes, wanted, held) if serving else [0] * len(free)
    spares: list[str] = []
    bound: set[str] = set()
    served = iter(range(wanted))
    for number, domain in enumerate(cluster.domains):
        nodes = iter(domain.nodes)
        here = [(TRAINER, learning, unit) for unit, at in enumerate(dealt) if at == number]
        here += [(GENERATOR, serving, unit) for unit in islice(served, engined[number])]
        for role, units, unit in here:
            assert units
            taken = tuple(islice(nodes, units.nodes))
            bound.update(taken if len(taken) > 1 else ())
            seats[role].update(_seated(units, unit, taken))
        spares += nodes
    places = {role: tuple(seats[role][worker] for worker in sorted(seats[role]))
              for role, units in ((TRAINER, learning), (GENERATOR, serving)) if units is not None}
    return Layout(cluster, places, tuple(spares), frozenset(bound))


def _seated(units: Units, unit: int, nodes: Sequence[str]) -> Iterator[tuple[int, tuple[Gpu, ...]]]:
    """Each worker of a unit with its GPUs."""
    for member, worker in enumerate(units.members[unit]):
        yield worker, tuple(Gpu(node, index) for node, index in units.seats(nodes, member))
