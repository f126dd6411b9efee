"""What has to stay together: workers in blocks, blocks in units of whole nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_bench.contract import Need, PlanError

TOGETHER = ("tensor", "expert")
"""Kinds of groups that stay inside one domain."""


@dataclass(frozen=True, slots=True)
class Units:
    """``members`` are the workers of each unit, ``nodes`` those that one unit takes, ``gpus`` those of one worker;
    ``unit`` and ``what`` are one of them and all of them in words."""

    members: tuple[tuple[int, ...], ...]
    nodes: int
    gpus: int
    unit: str
    what: str

    @property
    def count(self) -> int:
        return len(self.members)

    @property
    def total(self) -> int:
        """Nodes that all of them take."""
        return self.count * self.nodes


def units_of(need: Need, per_node: int, nodes: int, called: str) -> Units:
    """Of one worker group on nodes of ``per_node`` GPUs. Where the number of workers is left open they fill ``nodes``;
    a worker that does not say has one GPU."""
    gpus = max(1, need.gpus)
    workers = need.workers or max(1, nodes // -(-gpus // per_node) * max(1, per_node // gpus))
    blocks = _blocks(need, workers)
    sizes = sorted({len(block) for block in blocks})
    if len(sizes) > 1:
        raise PlanError(f"{called}s belong together in blocks of {', '.join(map(str, sizes))}, and only blocks of one "
                        "size can be placed", hint="give every group of the trainer the same number of ranks")
    size = sizes[0] * gpus
    what = f"{workers} {called}{'s' * (workers > 1)}" + (f" of {gpus} GPUs" if gpus > 1 else "")
    unit = f"one {called} of {gpus} GPUs" if sizes[0] == 1 else f"a group of {sizes[0]} {called}s"
    if size >= per_node:
        found = Units(tuple(blocks), -(-size // per_node), gpus, unit, what)
    else:
        share = per_node // size
        shared = [blocks[start:start + share] for start in range(0, len(blocks), share)]
        members = tuple(tuple(worker for block in some for worker in block) for some in shared)
        found = Units(members, 1, gpus, unit, what)
    _check_tensor_groups(need, found, per_node, called)
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


def _check_tensor_groups(need: Need, units: Units, per_node: int, called: str) -> None:
    """A tensor group that fits on a node sits on one; a larger one has whole nodes."""
    node_of = {worker: (number, seat * units.gpus // per_node) for number, members in enumerate(units.members)
               for seat, worker in enumerate(members)}
    for group in _groups(need, ("tensor",)):
        least = -(-len(group) * units.gpus // per_node)
        if len({node_of[worker] for worker in group}) > least:
            raise PlanError(f"tensor groups of {len(group)} {called}s do not fit onto nodes of {per_node} GPUs without "
                            "being cut", hint=f"take a tensor_parallel that divides {per_node} or is a multiple of it")
