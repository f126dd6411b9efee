"""Workers on the hosts of a Ray cluster: a fabric whose seats are held by Ray actors."""

from ._plugin import RayConfig, plugin

__all__ = ["RayConfig", "plugin"]
