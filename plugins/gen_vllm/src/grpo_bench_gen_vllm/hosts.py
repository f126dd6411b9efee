"""Engines that span hosts: each has its worker on its first host and one follower on every further one.

The hardware places engines, and names the hosts of each in turn. Out of that placement come two: of the workers, and of
the followers, which are numbered engine by engine. vLLM divides an engine's processes evenly over its hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from grpo_bench.contract import Placement


@dataclass(frozen=True, slots=True)
class Spread:
    """Where a number of engines sit; ``hosts`` are those of one."""

    engines: int
    hosts: int
    placement: Placement

    @classmethod
    def of(cls, placement: Placement, engines: int) -> Spread:
        return cls(engines, max(1, len(placement.nodes) // max(1, engines)), placement)

    def first(self) -> Placement:
        """Of the workers."""
        return self._part(1, self.placement.nodes[::self.hosts])

    def further(self) -> Placement:
        """Of the followers."""
        nodes = self.placement.nodes
        return self._part(self.hosts - 1, [node for at, node in enumerate(nodes) if at % self.hosts])

    def followers(self, engine: int) -> range:
        """The followers of one engine."""
        return range(engine * (self.hosts - 1), (engine + 1) * (self.hosts - 1))

    def engine_of(self, follower: int) -> int:
        """The engine that a follower belongs to."""
        return follower // (self.hosts - 1)

    def _part(self, of_each: int, nodes: Sequence[str]) -> Placement:
        return replace(self.placement, workers=self.engines * of_each, nodes=tuple(nodes),
                       gpus=self.placement.gpus // self.hosts)
