"""A small tool-calling repair agent that runs inside the rollout worker."""

from ._plugin import ToolCallConfig, plugin

__all__ = ["ToolCallConfig", "plugin"]
