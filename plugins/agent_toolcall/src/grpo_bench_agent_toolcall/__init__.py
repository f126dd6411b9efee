"""A small tool-calling repair agent that runs in process."""

from ._plugin import ToolCallConfig, plugin

__all__ = ["ToolCallConfig", "plugin"]
