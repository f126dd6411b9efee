"""Loading the one plugin that a profile names for a role.

Whatever goes wrong while its entry point is imported, exits included, becomes one error that names the plugin and its
distribution. Only the chosen plugin is imported, and nobody else's metadata is read for it, so a broken neighbour does
no harm. What an import prints goes to stderr, since stdout may belong to ``--json``. The first import of
a module is tried in a copy of this process, which may hang or crash where this one must not: a descriptor is light, so
that costs a few milliseconds.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from ..contract import API_VERSION, Boundary, PlanError, Plugin, Role
from .disabled import KEY as DISABLED
from .installed import CORE, Installed, duplicates, installed_plugins
from .lines import line_of
from .names import choices
from .probe import probe
from .source import Source

IMPORT_S = 60.0
"""Seconds after which the import of a descriptor is taken to hang."""

_fates: dict[str, str] = {}
"""What became of the modules that were tried: nothing, or what would have become of this process."""
_MACHINERY = ("<frozen importlib", "/importlib/", __file__)
"""Frames that say nothing about why a plugin's import failed."""


def load_plugin(role: Role, name: str, installed: Sequence[Installed] | None = None) -> tuple[Plugin, Installed]:
    """The descriptor of plugin ``name`` of ``role``, and where it came from; PlanError if there is no usable one.
    ``installed`` saves looking through the packages again for every plugin of a profile."""
    entry = _find(role, name, installed_plugins() if installed is None else installed)
    try_imports([entry])
    if fate := _fates.pop(entry.module, ""):
        raise _failed(entry, f"its import {fate}")
    return checked(entry, imported(entry)), entry


def try_imports(plugins: Iterable[Installed]) -> None:
    """Import modules that are new to this process in a copy of it, all in one since a copy costs more than they do.
    Whoever loads a plugin that would have ended or hung this process gets an error then."""
    waiting = {plugin.module: plugin for plugin in plugins
               if plugin.distribution != CORE and plugin.module not in sys.modules.keys() | _fates.keys()}

    def attempt(say: Callable[[str], None]) -> None:
        for module, plugin in waiting.items():
            try:
                imported(plugin)
            except PlanError:
                pass  # one that raises can be imported here, and is told of then
            say(module)

    def notice(done: int) -> str:
        plugin = list(waiting.values())[min(done, len(waiting) - 1)]
        return (f"grpo-bench: still importing {plugin.role} {plugin.name!r} of {plugin.distribution} "
                f"{plugin.version}, for {IMPORT_S:g} s at most")

    if waiting:
        found = probe(attempt, IMPORT_S, notice)
        _fates.update(dict.fromkeys(found.lines, ""))
        if found.fate:
            _fates[list(waiting)[min(len(found.lines), len(waiting) - 1)]] = found.fate


def checked(entry: Installed, descriptor: Any) -> Plugin:
    """What ``entry`` led to, where that is a descriptor which speaks this API and says the same; else a PlanError."""
    boundary = Boundary(plugin=entry.name, role=entry.role)
    if not isinstance(descriptor, Plugin):
        raise PlanError(f"{entry.value} of {entry.distribution} is no plugin descriptor but of type "
                        f"{type(descriptor).__name__}", boundary=boundary,
                        hint="its entry point should name a grpo_bench.contract.Plugin")
    if descriptor.api != API_VERSION:
        raise PlanError(f"{entry.distribution} {entry.version} is written for plugin API {descriptor.api}, "
                        f"this grpo-bench has {API_VERSION}", boundary=boundary, hint="install a version that matches")
    if (descriptor.role, descriptor.name) != (entry.role, entry.name):
        raise PlanError(f"{entry.distribution} registers {entry.value} as {entry.role} {entry.name!r}, but its "
                        f"descriptor says {descriptor.role} {descriptor.name!r}", boundary=boundary,
                        hint="an error of that package")
    if not descriptor.factory and descriptor.role != Role.AGENT:
        raise PlanError(f"the descriptor of {entry.role} {entry.name!r} of {entry.distribution} names no factory",
                        boundary=boundary, hint="an error of that package")
    if descriptor.policy is not None and (descriptor.role != Role.GENERATOR or not descriptor.stand_in):
        raise PlanError(f"the descriptor of {entry.role} {entry.name!r} of {entry.distribution} puts "
                        f"{descriptor.policy} in the place of the core's policy, which only a generator that is a "
                        "stand-in may do", boundary=boundary, hint="an error of that package")
    return descriptor


def check_enabled(role: Role, name: str, sources: Iterable[Source]) -> None:
    """PlanError where a registry file switches the plugin off."""
    for source in sources:
        if (text := f"{role.value}:{name}") in source.disabled:
            line = line_of(source.lines, (DISABLED, source.disabled.index(text)))
            raise PlanError(f"{role.value} {name!r} is disabled by {source.file}:{line}",
                            hint="take it off that list, or choose another")


def check_requirements(descriptor: Plugin) -> None:
    """PlanError unless all that the descriptor ``requires`` is installed, and nothing in a version that it does not
    support."""
    supported = [f"{name}{versions}" for name, versions in descriptor.supports.items()]
    boundary = Boundary(plugin=descriptor.name, role=descriptor.role.value)
    for text in (*descriptor.requires, *supported):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise PlanError(f"the descriptor of {descriptor.role.value} {descriptor.name!r} asks for {text!r}, which "
                            "is no requirement", boundary=boundary, hint="an error of that package") from error
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


def imported(entry: Installed) -> Any:
    """What the entry point names, imported here; PlanError where that raises or exits."""
    point = EntryPoint(entry.name, entry.value, Role(entry.role).entry_point_group)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failed(entry, _last_words(error)) from error


def _failed(entry: Installed, why: str) -> PlanError:
    return PlanError(f"{entry.distribution} {entry.version} cannot be imported: {why}",
                     boundary=Boundary(plugin=entry.name, role=entry.role),
                     hint=f"python -c 'import {entry.module}' shows the whole traceback")


def _last_words(error: BaseException) -> str:
    words = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__)
              if not any(part in frame.filename for part in _MACHINERY)]
    return f"{words} ({frames[-1].filename}:{frames[-1].lineno})" if frames else words
