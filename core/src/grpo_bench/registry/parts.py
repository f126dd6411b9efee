"""The parts of a plan: loaded, validated, housed in the environment of their workers, and asked about themselves.

Whatever a plugin raises while it is asked names it: an error of its own gets its boundary, any other becomes a
PluginError.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from ..contract import (
    Boundary, GrpoBenchError, Placement, PlanError, Plugin, PluginContext, PluginError, PolicyFacts, Purpose,
    RegistryError, Role, Site, WorkerEnv, load_object,
)
from .envs import Located, locate
from .installed import Installed, installed_plugins
from .lines import Key
from .loading import check_enabled, check_requirements, load_plugin, try_imports
from .missing import Shortage
from .plan import Part
from .profile import Profile, Section
from .resolved import Resolved
from .validate import validate

Parts = tuple[dict[Role, Part], tuple[Part, ...]]
"""By role, and the observers."""


def find_parts(resolved: Resolved, lacks: Shortage, idle: Collection[Role] = ()) -> Parts:
    """All parts, each loaded before any is asked for its environment; those that are ``idle`` do without."""
    profile = resolved.profile
    installed = installed_plugins()
    chosen = {(role.value, section.use) for role, section in profile.sections.items()}
    chosen |= {(Role.OBSERVER.value, section.use) for section in profile.observers}
    try_imports(plugin for plugin in installed if (plugin.role, plugin.name) in chosen)
    parts = {role: _part(role, section, (role.value,), resolved, installed)
             for role, section in profile.sections.items()}
    observers = [_part(Role.OBSERVER, section, ("observers", number), resolved, installed)
                 for number, section in enumerate(profile.observers)]
    return ({role: part if role in idle else _housed(part, profile.sections[role], (role.value,), resolved, lacks)
             for role, part in parts.items()},
            tuple(_housed(part, profile.observers[number], ("observers", number), resolved, lacks)
                  for number, part in enumerate(observers)))


def _part(role: Role, section: Section, path: Key, resolved: Resolved, installed: Sequence[Installed]) -> Part:
    try:
        check_enabled(role, section.use, resolved.sources)
        descriptor, entry = load_plugin(role, section.use, installed)
        with attributed(role, descriptor):
            check_requirements(descriptor)
    except PlanError as error:
        located = resolved.merged.error((*path, "use"), error.message)
        raise PlanError(located.message, hint=error.hint, boundary=error.boundary) from error.__cause__
    with attributed(role, descriptor):
        config = validate(descriptor.config, section.options, resolved.merged, path)
    return Part(role, descriptor, config, entry.distribution, entry.version)


def _housed(part: Part, section: Section, path: Key, resolved: Resolved, lacks: Shortage) -> Part:
    """The part with the environment of its workers, and with what that leaves of its capabilities."""
    descriptor, env = part.descriptor, part.descriptor.env
    if env is None and section.env is not None:
        raise resolved.merged.error((*path, "env"), f"{part.role.value} {part.name!r} has no environment of its own: "
                                    "its workers run under the engine's interpreter", hint="leave env out",
                                    kind=PlanError)
    if env is not None:
        found = lacks.ask(lambda: _located(env, section.env, path, resolved))
        part = replace(part, env=section.env or env.name)
        if found is None:
            return part
        part = replace(part, interpreter=found.interpreter, inventory=found.inventory)
    if descriptor.narrow is not None:
        with attributed(part.role, part.descriptor):
            capabilities = load_object(descriptor.narrow)(part.config, part.inventory)
            part = replace(part, descriptor=replace(descriptor, capabilities=capabilities))
    return part


def _located(env: WorkerEnv, wanted: str | None, path: Key, resolved: Resolved) -> Located:
    try:
        return locate(env, wanted)
    except PlanError as error:
        located = resolved.merged.error((*path, "env" if wanted else "use"), error.message, hint=error.hint,
                                        kind=type(error))
        located.boundary = error.boundary
        raise located from error.__cause__


def described(part: Part, checkpoint: PolicyFacts, placement: Placement, machine: Mapping[str, Any],
              resolved: Resolved) -> Part:
    """The part with what it tells about itself."""
    if part.descriptor.describe is None:
        return part
    site = site_of(part, checkpoint, placement, machine, resolved.profile)
    with attributed(part.role, part.descriptor):
        return replace(part, facts=plain(load_object(part.descriptor.describe)(part.config, site)))


def site_of(part: Part, checkpoint: PolicyFacts, placement: Placement, machine: Mapping[str, Any],
            profile: Profile) -> Site:
    """Where and for what a part will work."""
    sampling = {Purpose.TRAIN: profile.sampling, Purpose.VALIDATION: profile.validation.sampling or profile.sampling}
    return Site(policy=checkpoint, placement=placement, interpreter=part.interpreter, inventory=part.inventory,
                sampling=sampling, loss=profile.grpo.loss, deterministic=profile.deterministic is True,
                limits=profile.limits, machine=machine)


def called(part: Part) -> str:
    """The part in messages."""
    return f"{part.role.value} {part.name!r}"


def made(part: Part, checkpoint: PolicyFacts, resolved: Resolved, seed: int) -> Any:
    """A role object that only answers questions: there is no fabric, clock or run folder at this point."""
    nothing: Any = None
    profile = resolved.profile
    shared = {Role.ENVIRONMENT: {"limits": profile.limits}, Role.RULESET: {"grpo": profile.grpo}}
    context = PluginContext(
        config=part.config, fabric=nothing, placement=Placement(), run_folder=Path(), policy=checkpoint, seed=seed,
        deterministic=profile.deterministic is True, clock=nothing, logger=structlog.get_logger(role=part.role.value),
        shared=shared.get(part.role, {}))
    with attributed(part.role, part.descriptor):
        return load_object(part.descriptor.factory)(context)


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as JSON data."""
    return json.loads(json.dumps(dict(facts), default=str))


@contextmanager
def attributed(role: Role, descriptor: Plugin) -> Iterator[None]:
    """Blame the plugin for what is raised inside."""
    boundary = Boundary(plugin=descriptor.name, role=role.value)
    try:
        yield
    except GrpoBenchError as error:
        if error.boundary == Boundary() and not isinstance(error, RegistryError):
            error.boundary = boundary
        raise
    except Exception as error:
        raise PluginError(f"{type(error).__name__}: {error}", boundary=boundary,
                          hint="raised while the plan was made") from error
