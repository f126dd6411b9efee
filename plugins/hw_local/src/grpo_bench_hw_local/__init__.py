"""This machine as one node: cores, memory, threads."""

from ._plugin import LocalConfig, plugin

__all__ = ["LocalConfig", "plugin"]
