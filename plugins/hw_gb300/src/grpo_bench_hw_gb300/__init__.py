"""Racks of GB300 nodes: which worker sits on which node, so that groups stay inside a network domain."""

from ._plugin import Gb300Config, plugin
from .cluster import Cluster, Domain
from .layout import Gpu, Layout, lay_out

__all__ = ["Cluster", "Domain", "Gb300Config", "Gpu", "Layout", "lay_out", "plugin"]
