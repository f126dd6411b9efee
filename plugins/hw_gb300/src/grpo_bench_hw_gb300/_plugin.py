"""The descriptor and the settings: those of any cluster, with a rack's numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from grpo_bench.contract import Capabilities, Plugin, Role
from grpo_bench_hw_cluster import ClusterConfig, Gigabytes, Nodes, Some


class Gb300Config(ClusterConfig):
    whole_domain: ClassVar[int] = 18
    """Nodes of an NVL72 rack."""

    nodes: Nodes = 64
    """Nodes of the run, spare ones included."""
    gpus_per_node: Annotated[int, Field(ge=1, le=16, strict=True)] = 4
    """GPUs of a node."""
    gpu: str = "GB300"
    """What the driver's name for its GPUs contains."""
    gpu_memory_gb: Gigabytes | None = 288.0
    """Memory of a GPU in GB (1e9 bytes); None: what ranks take is not compared with it."""
    nodes_per_domain: Nodes | None = None
    """Nodes that reach each other over NVLink. None: as the topology says; without one 18, those of an NVL72 rack.
    With a topology only 1 has a meaning: its domains are not used then, each node is one of its own."""
    segment: Some = 8
    """Nodes that the scheduler gives together, inside one domain; a domain has as many whole segments as fit. 0: it is
    not asked for any."""


plugin = Plugin(
    name="gb300",
    role=Role.HARDWARE,
    summary="racks of GB300 nodes, each an NVLink domain",
    config=Gb300Config,
    factory="grpo_bench_hw_gb300.hardware:create",
    capabilities=Capabilities(deterministic=True),
)
