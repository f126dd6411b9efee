"""Environments of workers whose libraries do not fit beside the engine's.

A plugin's descriptor names one, with a lock that says how it is built and a function that says what it holds (see
:class:`grpo_bench.contract.WorkerEnv`); ``grpo-bench env build`` builds it into the user's cache; a plan locates it. A
build belongs to one lock, by its hash: where the lock has changed, the environment is not built. Whoever has the
libraries elsewhere, as in a vendor's container, names the interpreter there by its path, and nothing is built.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..contract import Missing, PlanError, Role, WorkerEnv
from .envs_build import build as build
from .envs_inventory import inventory_of
from .envs_lock import read_lock
from .envs_python import engine_tag
from .envs_store import Place, cache, held as held, places as places
from .installed import installed_plugins
from .loading import load_plugin, try_imports
from .names import choices


@dataclass(frozen=True)
class Known:
    """An environment that installed plugins name, and which these are, as ``role name``."""

    env: WorkerEnv
    needed_by: tuple[str, ...]


class Located(NamedTuple):
    """An interpreter for workers, and what its environment holds."""

    interpreter: str
    inventory: dict[str, Any]


def known() -> list[Known]:
    """The environments of all installed plugins that can be loaded, by name."""
    installed = installed_plugins()
    try_imports(installed)
    needed: dict[WorkerEnv, list[str]] = {}
    for item in installed:
        try:
            descriptor, _ = load_plugin(Role(item.role), item.name, installed)
        except PlanError:
            continue  # `plugins check` says what is wrong with it
        for env in (descriptor.env, *descriptor.envs):
            if env is not None:
                needed.setdefault(env, []).append(f"{item.role} {item.name}")
    found = [Known(env, tuple(dict.fromkeys(names))) for env, names in needed.items()]
    return sorted(found, key=lambda item: (item.env.name, item.needed_by))


def named(name: str, among: Sequence[Known] | None = None) -> WorkerEnv:
    """The environment of that name; PlanError where no plugin names it, or two mean different ones."""
    among = known() if among is None else among
    found = [item for item in among if item.env.name == name]
    if not found:
        raise PlanError(f"no installed plugin has an environment {name!r}{choices(name, {i.env.name for i in among})}")
    if len({item.env.lock for item in found}) > 1:
        owners = "; ".join(f"{', '.join(item.needed_by)}: {item.env.lock}" for item in found)
        raise PlanError(f"environment {name!r} means different locks: {owners}", hint="uninstall all but one")
    return found[0].env


def built(env: WorkerEnv) -> Place | None:
    """The build of an environment's present lock, one for the engine's version of Python first; None: not built."""
    stem = read_lock(env).stem
    found = [place for place in places() if place.stem == stem and place.record() is not None]
    return min(found, key=lambda place: (not place.key.endswith(f"-{engine_tag()}"), place.key), default=None)


def locate(env: WorkerEnv, wanted: str | None = None) -> Located:
    """The interpreter of a plugin's workers. ``wanted`` is None for the descriptor's own environment, another's name,
    or the path of a python; then the plugin's inventory is taken there."""
    if wanted is not None and (os.sep in wanted or wanted.startswith("~")):
        path = os.path.expanduser(wanted)
        if not os.path.isabs(path):
            raise PlanError(f"{wanted!r} should be the name of an environment or the absolute path of a python")
        return Located(path, inventory_of(path, env, _kept(path, env)))
    home = env if wanted in (None, env.name) else named(wanted)
    place = built(home)
    if place is None:
        stale = any(other.name == home.name for other in places())
        raise Missing(f"environment {home.name!r} is not built{' for its present lock' if stale else ''}; "
                      f"run `grpo-bench env build {home.name}`", hint="or name a python that has its libraries")
    python = str(place.python)
    beside = home == env and os.access(place.inventory.parent, os.W_OK)
    return Located(python, inventory_of(python, env, place.inventory if beside else _kept(python, env)))


def _kept(path: str, env: WorkerEnv) -> Path:
    """Where the inventory at somebody else's interpreter is kept."""
    digest = hashlib.sha256(f"{env.name}\0{env.inventory}\0{path}".encode()).hexdigest()
    return cache() / "inventories" / f"{env.name}-{digest[:16]}.json"
