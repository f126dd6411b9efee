"""The contract's Hardware on nodes in network domains.

Rollout workers have no GPU and are spread evenly over all nodes that are in use, those of the trainer included: its
GPUs wait for rollouts anyway, and its CPUs have little to do then. Spare nodes hold nobody, so that any of them can
take the place of one that is lost.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import LaunchForm, Missing, Need, Placement, PluginContext

from ._plugin import ClusterConfig
from .kernels import reproducible
from .layout import GENERATOR, TRAINER, Layout, lay_out
from .spares import stand_ins
from .topology import find

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
IN_ORDER = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
"""Kernels start in the order in which they were launched, collectives among them: without that ranks that overlap
computing and sending may wait for each other for ever."""


class ClusterHardware:
    """A cluster, as settings and ``environ`` say it. ``network`` is what collectives need on it."""

    def __init__(self, config: ClusterConfig, network: Mapping[str, str], environ: Mapping[str, str],
                 root: Path = Path("/"), *, deterministic: bool = False) -> None:
        self._config, self._root = config, root
        self._found = find(config, environ)
        self._env = {**({**IN_ORDER, **network} if config.gpus_per_node else {}),
                     **(reproducible(root) if deterministic else {})}

    def describe(self) -> Mapping[str, Any]:
        """The cluster that is placed on; Missing with it where its nodes are not known, or this host is one of them and
        should not be."""
        config, cluster = self._config, self._found.cluster
        memory = {"gpu_memory_bytes": int(config.gpu_memory_gb * 1e9)} if config.gpu_memory_gb else {}
        facts = {
            "nodes": len(cluster.nodes), "gpus": cluster.gpus, **({"gpu": config.gpu} if config.gpu else {}), **memory,
            "domains_from": self._found.source, "spare": config.spare,
            "domains": {domain.name: list(domain.nodes) for domain in cluster.domains},
        }
        if why := self._found.unknown or self._wrong_gpus():
            raise Missing(why, facts=facts)
        return facts

    def place(self, needs: Mapping[str, Need]) -> Mapping[str, Placement]:
        """Trainer and generator by layout; other groups have no GPUs and are spread over all nodes in use."""
        config = self._config
        layout = lay_out(needs, self._found.cluster, config.policy_nodes, config.generation_nodes, config.spare)
        env = {**dict.fromkeys(_THREAD_VARIABLES, str(config.threads)), "TOKENIZERS_PARALLELISM": "false", **self._env}
        placed = {}
        for role, need in needs.items():
            seated = role in (TRAINER, GENERATOR)
            nodes = layout.nodes(role) if seated else _spread(need, layout)
            used = dict.fromkeys(node for worker in nodes for node in worker)
            spares = {node: found for node in used if (found := stand_ins(layout, node))}
            gpus = len(layout.places[role][0]) if seated and layout.cluster.gpus else 0
            placed[role] = Placement(workers=len(nodes), threads=config.threads, env=env, gpus=gpus, spares=spares,
                                     nodes=tuple(node for worker in nodes for node in worker))
        return placed

    def form(self) -> LaunchForm:
        config = self._config
        return LaunchForm(config.nodes, config.gpus_per_node, config.segment, self._env)

    def _wrong_gpus(self) -> str:
        """Why this host cannot be the node that it is called; empty where it can, or is none."""
        config, cluster = self._config, self._found.cluster
        host = next((node for node in cluster.nodes if node in (platform.node(), platform.node().partition(".")[0])),
                    None)
        if host is None or not cluster.gpus:
            return ""
        models = [_model(file) for file in sorted(self._root.glob("proc/driver/nvidia/gpus/*/information"))]
        fitting = sum(config.gpu in model for model in models)
        if fitting == cluster.gpus:
            return ""
        kind = f" of type {config.gpu}" if config.gpu else ""
        return (f"this host, its node {host}, has {fitting or 'no'} GPU{'s' * (fitting != 1)}{kind} and should have "
                f"{cluster.gpus} (see hardware.gpu and hardware.gpus_per_node)")


def _spread(need: Need, layout: Layout) -> tuple[tuple[str, ...], ...]:
    nodes = [node for node in layout.cluster.nodes if node not in layout.spares]
    workers = need.workers or 1
    return tuple((nodes[worker * len(nodes) // workers],) for worker in range(workers))


def _model(file: Path) -> str:
    lines = file.read_text("utf-8", "replace").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "")


def create(context: PluginContext) -> ClusterHardware:
    """The factory."""
    return ClusterHardware(context.config, {}, os.environ, deterministic=context.deterministic)
