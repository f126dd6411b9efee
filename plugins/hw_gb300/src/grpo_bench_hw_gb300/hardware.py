"""The contract's Hardware on a cluster of racks."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import LaunchForm, Missing, Need, Placement, PluginContext

from ._plugin import Gb300Config
from .cluster import Cluster, described
from .layout import GENERATOR, TRAINER, lay_out

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NCCL = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
"""Kernels start in the order in which they were launched, collectives among them: without that ranks that overlap
computing and sending may wait for each other for ever."""


class RackHardware:
    """A cluster of which this host is one node, or should be."""

    def __init__(self, config: Gb300Config, root: Path = Path("/")) -> None:
        self._config = config
        self._cluster = described(config)
        self._root = root

    def describe(self) -> Mapping[str, Any]:
        """The cluster that is placed on; Missing with it where this host is none of its nodes."""
        config, cluster = self._config, self._cluster
        facts = {
            "nodes": len(cluster.nodes), "gpus": cluster.gpus, "gpu": config.gpu,
            "gpu_memory_bytes": int(config.gpu_memory_gb * 1e9), "domains_from": _source(config),
            "domains": {domain.name: list(domain.nodes) for domain in cluster.domains},
        }
        if why := self._foreign():
            raise Missing(f"this host is none of its nodes: {why}", facts=facts,
                          hint=f"start on one, with {cluster.gpus} GPUs of type {config.gpu}")
        return facts

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        """Trainer and generator by layout; other groups have no GPUs and are spread over all nodes."""
        config, cluster = self._config, self._cluster
        layout = lay_out(needs, cluster, config.policy_nodes)
        env = {**dict.fromkeys(_THREAD_VARIABLES, str(config.threads)), "TOKENIZERS_PARALLELISM": "false", **_NCCL}
        placed = {}
        for role, need in needs.items():
            nodes = layout.nodes(role) if role in (TRAINER, GENERATOR) else _spread(need, cluster)
            placed[role] = Placement(workers=len(nodes), threads=config.threads, env=env,
                                     nodes=tuple(node for worker in nodes for node in worker))
        return placed

    def form(self) -> LaunchForm:
        config = self._config
        return LaunchForm(config.nodes, config.gpus_per_node, config.segment, _NCCL)

    def _foreign(self) -> str:
        """Why this host is no node of the cluster; empty where it is one."""
        config, cluster = self._config, self._cluster
        models = [_model(file) for file in sorted(self._root.glob("proc/driver/nvidia/gpus/*/information"))]
        fitting = sum(config.gpu in model for model in models)
        if fitting != cluster.gpus:
            return f"it has {fitting or 'no'} GPU{'s' * (fitting != 1)} of type {config.gpu}"
        host = platform.node()
        if config.topology is not None and not {host, host.partition(".")[0]} & set(cluster.nodes):
            return f"{config.topology} does not name {host}"
        return ""


def _spread(need: Need, cluster: Cluster) -> tuple[tuple[str, ...], ...]:
    nodes, workers = cluster.nodes, need.workers or 1
    return tuple((nodes[worker * len(nodes) // workers],) for worker in range(workers))


def _source(config: Gb300Config) -> str:
    if config.topology is not None:
        return config.topology
    return f"assumed: segments of {config.segment} nodes inside domains of {config.nodes_per_domain}"


def _model(file: Path) -> str:
    lines = file.read_text("utf-8", "replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "")


def create(context: PluginContext) -> RackHardware:
    """The factory."""
    return RackHardware(context.config)
