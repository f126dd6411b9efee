"""Nodes in network domains: which worker sits on which GPU of which node. The plugin ``cluster``, and the model behind
it for hardware that is one."""

from ._plugin import ClusterConfig, Gigabytes, Nodes, Some, plugin
from .cluster import Cluster, Domain
from .hardware import ClusterHardware
from .kernels import reproducible
from .layout import GENERATOR, TRAINER, Gpu, Layout, lay_out
from .spares import replaced, stand_ins

__all__ = [
    "GENERATOR", "TRAINER", "Cluster", "ClusterConfig", "ClusterHardware", "Domain", "Gigabytes", "Gpu", "Layout",
    "Nodes", "Some", "lay_out", "plugin", "replaced", "reproducible", "stand_ins",
]
