"""Which nodes there are: from a file, from Slurm, from Ray, or assumed.

Where the allocation or the cluster that should be asked is not there, the cluster is assumed as settings describe it,
so that a plan can be drawn; ``unknown`` says then why no run can start on it.
"""

from __future__ import annotations

import json
import platform
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from grpo_bench.contract import PlanError

from ._plugin import ClusterConfig
from .cluster import Cluster, Domain, apart, assumed
from .labels import cluster_domains
from .slurm import allocation_domains

VARIABLE = "GRPO_BENCH_TOPOLOGY"
MOST_BYTES = 2**20
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,255}")
Domains = Mapping[str, tuple[str, ...]]
"""Nodes by domain, both in a fixed order."""


@dataclass(frozen=True, slots=True)
class Found:
    """``source`` says where the cluster is from; ``unknown`` why its nodes are not known, empty where they are."""

    cluster: Cluster
    source: str
    unknown: str = ""


def find(config: ClusterConfig, environ: Mapping[str, str]) -> Found:
    """The cluster of these settings; PlanError where what is asked says something else, or nothing."""
    wanted = config.topology
    if wanted == "slurm":
        if "SLURM_JOB_NODELIST" not in environ:
            return _assumed(config, "this is no Slurm allocation, SLURM_JOB_NODELIST is not set",
                            "start inside one, or name a topology file in hardware.topology")
        return _checked(allocation_domains(environ), config, "Slurm's allocation")
    if wanted == "ray":
        if not environ.get("RAY_ADDRESS"):
            return _assumed(config, "RAY_ADDRESS is not set", "set it to the address of the cluster, or name a "
                            "topology file in hardware.topology")
        return _checked(cluster_domains(environ, config.gpus_per_node), config,
                        f"the Ray cluster at {environ['RAY_ADDRESS']}")
    if wanted is not None:
        return _checked(read(Path(wanted).expanduser(), "hardware.topology"), config, wanted)
    if named := environ.get(VARIABLE):
        return _checked(read(Path(named), VARIABLE), config, named)
    if config.nodes == 1:
        return Found(assumed(config, platform.node()), "this host")
    return _assumed(config, "nothing names them", "a launcher names those of its job, else see hardware.topology")


def _assumed(config: ClusterConfig, why: str, todo: str) -> Found:
    segments = f"segments of {config.segment} nodes inside " if config.segment else ""
    source = f"assumed: {segments}domains of {config.domain_nodes}"
    return Found(assumed(config, platform.node()), source, f"its nodes are not known here: {why} ({todo})")


def read(file: Path, key: str) -> Domains:
    """The nodes in ``file``, which ``key`` names; PlanError where it holds none."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise PlanError(f"{key}: {file} is no file", hint=_FORM)
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_BYTES + 1)
        found = json.loads(text, object_pairs_hook=_once) if len(text) <= MOST_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise PlanError(f"{key}: {file} cannot be read: {error}", hint=_FORM) from None
    if len(text) > MOST_BYTES:
        raise PlanError(f"{key}: {file} has more than {MOST_BYTES:,} bytes, too many for names of nodes", hint=_FORM)
    if not (isinstance(found, dict) and found and all(map(_is_names, found.values()))):
        raise PlanError(f"{key}: {file} does not name nodes by domain", hint=_FORM)
    if odd := [name for name in (*found, *chain(*found.values())) if not _NAME.fullmatch(name)]:
        raise PlanError(f"{key}: {file} has {odd[0]!r:.80}, which cannot be the name of a node or a domain",
                        hint="a name has up to 255 letters, digits, dots, hyphens, underscores and colons")
    return {name: tuple(nodes) for name, nodes in found.items()}


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object of the file; ValueError where it has a key twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"{twice!r:.80} is in it more than once")
    return found


def _checked(domains: Domains, config: ClusterConfig, source: str) -> Found:
    cluster = Cluster(tuple(Domain(name, nodes) for name, nodes in domains.items()), config.gpus_per_node)
    if twice := [node for node, count in Counter(cluster.nodes).items() if count > 1]:
        raise PlanError(f"hardware.topology: {source} names {', '.join(twice[:3])} more than once")
    if len(cluster.nodes) != config.nodes:
        raise PlanError(f"hardware.topology: {source} names {len(cluster.nodes)} nodes, and hardware.nodes is "
                        f"{config.nodes}", hint="change the one that is wrong; nodes too many can be hardware.spare")
    return Found(apart(cluster) if config.nodes_per_domain == 1 else cluster, source)


def _is_names(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(name, str) and name for name in value)


_FORM = 'it should be a JSON file such as {"rack0": ["node0", "node1"], "rack1": ["node2"]}'
