"""The descriptor and the settings."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from grpo_bench.contract import Capabilities, Plugin, Role, Settings

Nodes = Annotated[int, Field(ge=1, le=4608, strict=True)]
Some = Annotated[int, Field(ge=0, le=4608, strict=True)]
Gpus = Annotated[int, Field(ge=0, le=16, strict=True)]
Gigabytes = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


class ClusterConfig(Settings):
    """The cluster that a run is placed on. How trainer and generator are cut up, their own settings say."""

    whole_domain: ClassVar[int] = 1
    """Nodes of a domain where nothing else is said."""

    nodes: Nodes = 1
    """Nodes of the run, spare ones included. One node is this host unless a topology names it; trainer and generator
    share its GPUs out."""
    gpus_per_node: Gpus = 8
    """GPUs of a node. 0: it has none, and workers are spread evenly over the nodes of their role."""
    gpu: str = ""
    """What the driver's name for its GPUs contains; empty: any will do."""
    gpu_memory_gb: Gigabytes | None = None
    """Memory of a GPU in GB (1e9 bytes); None: what ranks take is not compared with it."""
    policy_nodes: Some = 0
    """Nodes for the trainer. 0: as many as its ranks take, and where it does not say how many ranks it has those that
    generation_nodes leaves, or else a quarter."""
    generation_nodes: Some = 0
    """Nodes for the generator. 0: all others."""
    spare: Some = 0
    """Nodes that are kept idle, to take the place of one that is lost. Nodes that are left over are spare as well."""
    nodes_per_domain: Nodes | None = None
    """Nodes that reach each other over NVLink. None: as the topology says; without one each node is a domain of its
    own. With a topology only 1 has a meaning: its domains are not used then, each node is one of its own."""
    segment: Some = 0
    """Nodes that the scheduler gives together, inside one domain; a domain has as many whole segments as fit. 0: it is
    not asked for any."""
    topology: Annotated[str, Field(min_length=1)] | None = None
    """Which nodes there are and in which domains: a JSON file, ``{"domain": ["node", ...], ...}``; ``slurm``, asked of
    the allocation that the command runs in; ``ray``, the labels of the cluster at RAY_ADDRESS. None: the file that
    GRPO_BENCH_TOPOLOGY names, and without it nodes get made-up names, which a plan can show and no run can use."""
    threads: Annotated[int, Field(ge=1, le=1024, strict=True)] = 1
    """Threads of each worker's numeric libraries."""

    @property
    def domain_nodes(self) -> int:
        """Nodes of a domain where no topology says it."""
        return self.nodes_per_domain or self.whole_domain

    @model_validator(mode="after")
    def _fits(self) -> ClusterConfig:
        self._check_domains()
        self._check_shares()
        if not self.gpus_per_node and self.gpu:
            raise ValueError(f"gpu = {self.gpu!r} says nothing of nodes with gpus_per_node = 0: leave it out")
        if not self.gpus_per_node and self.gpu_memory_gb is not None:
            raise ValueError("gpu_memory_gb says nothing of nodes with gpus_per_node = 0: leave it out")
        return self

    def _check_domains(self) -> None:
        if self.topology is not None and self.nodes_per_domain not in (None, 1):
            raise ValueError(f"nodes_per_domain = {self.nodes_per_domain} would not be used: topology says which "
                             "domains there are (leave one of them out)")
        if self.topology is None and self.segment > self.domain_nodes:
            raise ValueError(f"segment = {self.segment} nodes do not fit into a domain of nodes_per_domain = "
                             f"{self.domain_nodes}")

    def _check_shares(self) -> None:
        """Who has no number of nodes needs at least one, but one node alone is shared out."""
        given = {name: getattr(self, name) for name in ("policy_nodes", "generation_nodes", "spare")}
        words = " and ".join(f"{name} = {count}" for name, count in given.items() if count)
        left, others = self.nodes - sum(given.values()), (not self.policy_nodes, not self.generation_nodes)
        if left < 0:
            raise ValueError(f"{words} are more than nodes = {self.nodes}")
        if words and left < sum(others):
            whom = " and ".join(name for name, waits in zip(("the trainer", "the generator"), others) if waits)
            raise ValueError(f"{words} leave{'s' * (' and ' not in words)} {left or 'none'} of nodes = {self.nodes} to "
                             f"{whom}")


plugin = Plugin(
    name="cluster",
    role=Role.HARDWARE,
    summary="nodes with or without GPUs, each an NVLink domain unless said otherwise",
    config=ClusterConfig,
    factory="grpo_bench_hw_cluster.hardware:create",
    capabilities=Capabilities(deterministic=True),
)
