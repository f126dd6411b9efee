"""What has to stay together: workers in blocks, blocks in units of whole nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from grpo_bench.contract import Need, PlanError

TOGETHER = ("tensor", "expert")
"""Kinds of groups that stay inside one domain."""


@dataclass(frozen=True, slots=True)
class Units:
    """``members`` are the workers of each unit, ``nodes`` those that one unit takes. A worker has ``gpus`` GPUs; a node
    has room for ``fit`` workers, and where it has none a worker takes several nodes. ``unit`` and ``what`` are one of
    them and all of them in words."""

    members: tuple[tuple[int, ...], ...]
    nodes: int
    gpus: int
    fit: int
    unit: str
    what: str

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def total(self) -> int:
        """Nodes that all of them take."""
        return self.count * self.nodes

    def seats(self, nodes: Sequence[str], member: int) -> Iterator[tuple[str, int]]:
        """Node and GPU of each of the GPUs of a unit's ``member``, counted from 0, on the ``nodes`` of that unit."""
        if self.fit:
            node, first = nodes[member // self.fit], member % self.fit * self.gpus
            yield from ((node, first + index) for index in range(self.gpus))
        else:
            each = self.nodes // len(self.members[0])
            for node in nodes[member * each:(member + 1) * each]:
                yield from ((node, index) for index in range(self.gpus // each))


def units_of(need: Need, per_node: int, nodes: int, called: str) -> Units:
    """Of one worker group on nodes of ``per_node`` GPUs. Where the number of workers is left open they fill ``nodes``;
    a worker that does not say has one GPU. Nodes without GPUs have room for as many workers as an even share of
    ``nodes`` asks for."""
    nodes = max(1, nodes)
    if per_node:
        gpus = max(1, need.gpus)
        each, fit = -(-gpus // per_node), per_node // gpus
        workers = need.workers or max(1, nodes // each * max(1, fit))
    else:
        gpus = each = 1
        workers = need.workers or nodes
        fit = -(-workers // nodes)
    if gpus % each:
        raise PlanError(f"one {called} of {gpus} GPUs takes {each} nodes of {per_node}, and {gpus} GPUs cannot be "
                        f"divided evenly among {each}", hint=f"take a number of GPUs that {each} divides")
    blocks = _blocks(need, workers)
    sizes = sorted({len(block) for block in blocks})
    if len(sizes) > 1:
        raise PlanError(f"{called}s belong together in blocks of {', '.join(map(str, sizes))}, and only blocks of one "
                        "size can be placed", hint="give every group of the trainer the same number of ranks")
    [size] = sizes
    of = f" of {gpus} GPUs" if gpus > 1 else ""
    what = f"{workers} {called}{'s' * (workers > 1)}{of}"
    unit = f"one {called}{of}" if size == 1 else f"a group of {size} {called}s"
    share = max(1, fit // size)
    shared = [blocks[start:start + share] for start in range(0, len(blocks), share)]
    members = tuple(tuple(sorted(worker for block in some for worker in block)) for some in shared)
    found = Units(members, -(-size // fit) if fit else size * each, gpus, fit, unit, what)
    _check_tensor_groups(need, found, called)
    return found


def _blocks(need: Need, workers: int) -> list[tuple[int, ...]]:
    """Workers that share a group, directly or over others, in ascending order."""
    root = list(range(workers))

    def find(worker: int) -> int:
        while root[worker] != worker:
            root[worker] = worker = root[root[worker]]
        return worker

    for group in _groups(need, TOGETHER):
        for worker in group[1:]:
            first, other = sorted((find(group[0]), find(worker)))
            root[other] = first
    blocks: dict[int, list[int]] = {}
    for worker in range(workers):
        blocks.setdefault(find(worker), []).append(worker)
    return [tuple(block) for block in blocks.values()]


def _groups(need: Need, kinds: Iterable[str]) -> Iterable[Sequence[int]]:
    return (group for kind in kinds for group in need.groups.get(kind, ()))


def _check_tensor_groups(need: Need, units: Units, called: str) -> None:
    """A tensor group that fits on a node sits on one; a larger one has whole nodes."""
    fit = units.fit
    if not fit:
        return
    node_of = {worker: (number, seat // fit) for number, members in enumerate(units.members)
               for seat, worker in enumerate(members)}
    for group in _groups(need, ("tensor",)):
        if len({node_of[worker] for worker in group}) > -(-len(group) // fit):
            raise PlanError(f"tensor groups of {len(group)} {called}s do not fit onto nodes with room for {fit} "
                            "without being cut", hint=f"take a tensor_parallel that divides {fit} or is a multiple of "
                                                      "it")
