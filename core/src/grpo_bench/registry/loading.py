"""Loading the one plugin that a profile names for a role.

stevedore imports the entry point; whatever goes wrong in there, exits included, becomes one error that names the
plugin and its distribution. Only the chosen plugin is imported, so a broken neighbour does no harm.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.requirements import Requirement
from stevedore.driver import DriverManager

from ..contract import API_VERSION, Boundary, PlanError, Plugin, Role
from .installed import Installed, duplicates, installed_plugins
from .names import choices

_MACHINERY = ("<frozen importlib", "/importlib/", "/stevedore/", __file__)
"""Frames that say nothing about why a plugin's import failed."""


def load_plugin(role: Role, name: str, installed: Sequence[Installed] | None = None) -> tuple[Plugin, Installed]:
    """The descriptor of plugin ``name`` of ``role``, and where it came from; PlanError if there is no usable one.
    ``installed`` saves looking through the packages again for every plugin of a profile."""
    entry = _find(role, name, installed_plugins() if installed is None else installed)
    boundary = Boundary(plugin=name, role=role.value)
    descriptor = _import(role, entry)
    if not isinstance(descriptor, Plugin):
        raise PlanError(f"{entry.value} of {entry.distribution} is no plugin descriptor but of type "
                        f"{type(descriptor).__name__}", boundary=boundary,
                        hint="its entry point should name a grpo_bench.contract.Plugin")
    if descriptor.api != API_VERSION:
        raise PlanError(f"{entry.distribution} {entry.version} is written for plugin API {descriptor.api}, "
                        f"this grpo-bench has {API_VERSION}", boundary=boundary, hint="install a version that matches")
    if (descriptor.role, descriptor.name) != (role, name):
        raise PlanError(f"{entry.distribution} registers {entry.value} as {role.value} {name!r}, but its descriptor "
                        f"says {descriptor.role} {descriptor.name!r}", boundary=boundary,
                        hint="an error of that package")
    return descriptor, entry


def check_requirements(descriptor: Plugin) -> None:
    """PlanError unless all that the descriptor ``requires`` is installed, and nothing in a version that it does not
    support."""
    supported = [f"{name}{versions}" for name, versions in descriptor.supports.items()]
    boundary = Boundary(plugin=descriptor.name, role=descriptor.role.value)
    for text in (*descriptor.requires, *supported):
        requirement = Requirement(text)
        found = _version(requirement.name)
        if found is None and text in descriptor.requires:
            raise PlanError(f"{descriptor.role.value} {descriptor.name!r} needs {text}, which is not installed",
                            boundary=boundary)
        if found is not None and not requirement.specifier.contains(found, prereleases=True):
            raise PlanError(f"{descriptor.role.value} {descriptor.name!r} works with {text}, but {found} is installed",
                            boundary=boundary)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _find(role: Role, name: str, plugins: Sequence[Installed]) -> Installed:
    if owners := duplicates(plugins).get((role.value, name)):
        raise PlanError(f"{role.value} {name!r} comes from several distributions: {', '.join(owners)}",
                        hint="uninstall all but one")
    of_role = {plugin.name: plugin for plugin in plugins if plugin.role == role.value}
    if name not in of_role:
        raise PlanError(f"no {role.value} plugin named {name!r} is installed{choices(name, of_role)}",
                        hint="install the distribution that brings it, or choose one that is there")
    return of_role[name]


def _import(role: Role, entry: Installed) -> Any:
    def fail(_manager: Any, _entry_point: Any, error: BaseException) -> None:
        raise error

    try:
        return DriverManager(namespace=role.entry_point_group, name=entry.name, on_load_failure_callback=fail).driver
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PlanError(f"{entry.distribution} {entry.version} cannot be imported: {_last_words(error)}",
                        boundary=Boundary(plugin=entry.name, role=role.value),
                        hint=f"python -c 'import {entry.value.partition(':')[0]}' shows the whole traceback") from error


def _last_words(error: BaseException) -> str:
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not any(part in frame.filename for part in _MACHINERY)]
    return f"{words} ({frames[-1].filename}:{frames[-1].lineno})" if frames else words
