"""The descriptor and the settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from grpo_bench.contract import Capabilities, Plugin, Role, Settings

Nodes = Annotated[int, Field(ge=1, le=4608, strict=True)]


class Gb300Config(Settings):
    """The cluster that a run is placed on. How trainer and generator are cut up, their own settings say."""

    nodes: Nodes = 64
    """Nodes of the run."""
    gpus_per_node: Annotated[int, Field(ge=1, le=16, strict=True)] = 4
    """GPUs of a node."""
    policy_nodes: Annotated[int, Field(ge=0, le=4608, strict=True)] = 0
    """Nodes for the trainer; the generator has the others. 0: as many as its ranks take, and a quarter where it does
    not say how many ranks it has."""
    nodes_per_domain: Annotated[int, Field(ge=1, le=4608, strict=True)] = 18
    """Nodes of a whole NVLink domain; an NVL72 rack has 18."""
    segment: Nodes = 8
    """Nodes that the scheduler gives together, inside one domain; a domain has as many whole segments as fit."""
    topology: str | None = None
    """JSON file with the nodes' names by domain, ``{"rack0": ["node0", ...], ...}``; it says then which nodes there
    are. None: nodes_per_domain and segment are taken as kept, and nodes get made-up names."""
    gpu: Annotated[str, Field(min_length=1)] = "GB300"
    """What the driver's name for its GPUs contains."""
    gpu_memory_gb: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] = 288.0
    """Memory of a GPU in GB (1e9 bytes)."""
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Threads of each worker's numeric libraries."""

    @model_validator(mode="after")
    def _fits(self) -> Gb300Config:
        if self.topology is None and self.segment > self.nodes_per_domain:
            raise ValueError(f"segment = {self.segment} nodes do not fit into a domain of nodes_per_domain = "
                             f"{self.nodes_per_domain}")
        if self.policy_nodes >= self.nodes:
            raise ValueError(f"policy_nodes = {self.policy_nodes} leaves none of nodes = {self.nodes} to the generator")
        return self


plugin = Plugin(
    name="gb300",
    role=Role.HARDWARE,
    summary="racks of GB300 nodes, each an NVLink domain",
    config=Gb300Config,
    factory="grpo_bench_hw_gb300.hardware:create",
    capabilities=Capabilities(deterministic=True),
)
