"""Whether equal seeds give equal runs: what a profile asks for, against what its parts promise.

``deterministic = "auto"`` takes what there is, so that a profile stays deterministic until a part takes its place that
cannot be. ``true`` is a demand: a part that cannot promise it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..contract import PlanError, Plugin, Role
from .layers import Origin
from .lines import Key
from .resolved import Resolved

_KEY: Key = ("deterministic",)


def settled(resolved: Resolved, descriptors: Mapping[Role, Plugin]) -> tuple[Resolved, str]:
    """The profile with ``deterministic`` true or false, and why ``"auto"`` became false; PlanError where it is true and
    cannot be."""
    wanted = resolved.profile.deterministic
    if wanted is False:
        return resolved, ""
    path, why = _obstacle(resolved, descriptors)
    if why and wanted is True:
        raise resolved.merged.error(resolved.merged.latest(_KEY, path), kind=PlanError,
                                    message=f"{why}, so that deterministic = true cannot hold",
                                    hint='set deterministic = "auto" or false, or change what stands against it')
    profile = resolved.profile.model_copy(update={"deterministic": not why})
    if not why:
        return replace(resolved, profile=profile), ""
    origin = replace(resolved.merged.origins.get(_KEY, Origin("default")), note=f"auto: {why}")
    merged = replace(resolved.merged, origins={**resolved.merged.origins, _KEY: origin})
    return replace(resolved, profile=profile, merged=merged), why


def _obstacle(resolved: Resolved, descriptors: Mapping[Role, Plugin]) -> tuple[Key, str]:
    """The setting that stands against equal runs, and how."""
    if resolved.profile.schedule.mode == "async":
        return ("schedule", "mode"), "with schedule.mode = 'async', timing decides which weights sample what"
    for role in (Role.TRAINER, Role.GENERATOR):
        if not descriptors[role].capabilities.deterministic:
            return (role.value, "use"), (f"{role.value} {descriptors[role].name!r} does not promise equal results for "
                                         "equal seeds")
    return _KEY, ""
