"""Profiles and plugins: layers of registry.toml, discovery, and the plan.

Names are imported on first use, so that listing installed plugins does not pay for the models that planning needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import make_plan as make_plan, survey as survey
    from .installed import Installed as Installed, installed_plugins as installed_plugins
    from .layers import Origin as Origin, profile_names as profile_names
    from .loading import load_plugin as load_plugin
    from .plan import Part as Part, Plan as Plan
    from .profile import Profile as Profile, Section as Section
    from .provenance import distribution_files as distribution_files, distribution_lock as distribution_lock
    from .resolved import (
        Explained as Explained, Resolved as Resolved, read_object as read_object, recorded as recorded,
        resolve as resolve,
    )
    from .site import SiteFile as SiteFile, read_site_file as read_site_file
    from .source import read_sources as read_sources

_HOMES = {
    "Explained": "resolved", "Installed": "installed", "Origin": "layers", "Part": "plan", "Plan": "plan",
    "Profile": "profile", "Resolved": "resolved", "Section": "profile", "SiteFile": "site",
    "distribution_files": "provenance", "distribution_lock": "provenance", "installed_plugins": "installed",
    "load_plugin": "loading", "make_plan": "build", "profile_names": "layers", "read_object": "resolved",
    "read_site_file": "site", "read_sources": "source", "recorded": "resolved", "resolve": "resolved",
    "survey": "build",
}

__all__ = [
    "Explained", "Installed", "Origin", "Part", "Plan", "Profile", "Resolved", "Section", "SiteFile",
    "distribution_files", "distribution_lock", "installed_plugins", "load_plugin", "make_plan", "profile_names",
    "read_object", "read_site_file", "read_sources", "recorded", "resolve", "survey",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
