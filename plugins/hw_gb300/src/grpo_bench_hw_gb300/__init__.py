"""Racks of GB300 nodes, each an NVLink domain of 18 nodes of four GPUs."""

from ._plugin import Gb300Config, plugin

__all__ = ["Gb300Config", "plugin"]
