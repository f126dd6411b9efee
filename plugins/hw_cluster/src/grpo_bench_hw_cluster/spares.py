"""What takes the place of a node that is lost.

A node of a unit of several nodes (a group of ranks that share experts, an engine on two nodes) can only be replaced by
one of its own domain, since the unit stays inside one. Any idle node can take the place of another; one of the same
domain comes first there too, so that groups that exchange less leave their domain no more often than before.
"""

from __future__ import annotations

from dataclasses import replace

from grpo_bench.contract import PlanError

from .layout import Gpu, Layout


def stand_ins(layout: Layout, lost: str) -> tuple[str, ...]:
    """The spares that can take the place of ``lost``, in the order in which they do."""
    domain_of = layout.cluster.domain_of()
    near = tuple(node for node in layout.spares if domain_of[node] == domain_of[lost])
    return near if lost in layout.bound else (*near, *(node for node in layout.spares if node not in near))


def replaced(layout: Layout, lost: str) -> Layout:
    """The layout with the first such spare in the place of ``lost``; PlanError where there is none."""
    found = next(iter(stand_ins(layout, lost)), None)
    if found is None:
        where = f"domain {layout.cluster.domain_of()[lost]}" if lost in layout.bound else "the cluster"
        raise PlanError(f"no idle node of {where} can take the place of {lost}", hint="see hardware.spare")

    def moved(gpu: Gpu) -> Gpu:
        return Gpu(found, gpu.index) if gpu.node == lost else gpu

    places = {role: tuple(tuple(map(moved, gpus)) for gpus in workers) for role, workers in layout.places.items()}
    domains = (replace(domain, nodes=tuple(node for node in domain.nodes if node != lost))
               for domain in layout.cluster.domains)
    return Layout(replace(layout.cluster, domains=tuple(domains)), places,
                  tuple(node for node in layout.spares if node != found),
                  frozenset(found if node == lost else node for node in layout.bound))
