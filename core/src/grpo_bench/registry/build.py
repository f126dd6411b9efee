"""Making the plan: the real path of a run up to its launch.

Order matters for messages: first every plugin must load, then each section must be valid, then the parts must fit, then
the policy and the tasks must be there; machine, ruleset and provenance come last.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from ..contract import (
    Boundary, Finding, GrpoBenchError, Placement, PlanError, Plugin, PluginContext, PluginError, PolicyFacts, Purpose,
    RegistryError, Role, Site, Task, load_object,
)
from .checkpoint import PACKAGED, fingerprint, policy_facts
from .comparison import incomparable, without_comparisons
from .determinism import settled
from .envs import locate
from .fit import check_fit
from .installed import Installed, installed_plugins
from .layers import Origin
from .lines import Key
from .loading import check_enabled, check_requirements, load_plugin, try_imports
from .plan import Part, Plan
from .profile import MAX_SEED, Profile, Section
from .provenance import dirty_sources, distribution_lock
from .resolved import Explained, Resolved, explain
from .validate import validate

PLACED = (Role.TRAINER, Role.GENERATOR)


def make_plan(resolved: Resolved, seed: int | None = None) -> Plan:
    """Load, validate and negotiate everything that profile needs. ``seed`` None: the profile's own.

    Raises InputError where the profile cannot run, PluginError where a plugin fails while it is asked.
    """
    profile = resolved.profile
    run_seed = profile.seed if seed is None else seed
    if not 0 <= run_seed <= MAX_SEED:
        raise RegistryError(f"seed: should be between 0 and {MAX_SEED}, got {run_seed}")
    installed = installed_plugins()
    chosen = {(role.value, section.use) for role, section in profile.sections.items()}
    chosen |= {(Role.OBSERVER.value, section.use) for section in profile.observers}
    try_imports(plugin for plugin in installed if (plugin.role, plugin.name) in chosen)
    parts = {role: _part(role, section, (role.value,), resolved, installed)
             for role, section in profile.sections.items()}
    observers = tuple(_part(Role.OBSERVER, section, ("observers", number), resolved, installed)
                      for number, section in enumerate(profile.observers))
    parts = {role: _housed(part, profile.sections[role], (role.value,), resolved) for role, part in parts.items()}
    observers = tuple(_housed(part, profile.observers[number], ("observers", number), resolved)
                      for number, part in enumerate(observers))
    descriptors = {role: part.descriptor for role, part in parts.items()}
    transport = check_fit(resolved, descriptors)
    resolved, varying = settled(resolved, descriptors)
    if why := incomparable(parts[Role.TRAINER].descriptor, parts[Role.GENERATOR].descriptor):
        resolved = without_comparisons(resolved, why)
    weights = not all(parts[role].descriptor.stand_in for role in PLACED)
    checkpoint = policy_facts(resolved, weights=weights)
    values = _values(resolved, parts, observers, checkpoint, run_seed)
    tasks = _tasks(resolved, parts[Role.ENVIRONMENT], checkpoint, run_seed)
    facts, placements = _placements(resolved, parts, checkpoint, run_seed)
    parts = {role: _described(part, checkpoint, placements, resolved) for role, part in parts.items()}
    findings = _findings(parts, values, checkpoint, resolved, run_seed)
    lock = distribution_lock(part.distribution for part in (*parts.values(), *observers))
    return Plan(
        name=resolved.name, profile=resolved.profile, seed=run_seed, parts=parts, observers=observers,
        checkpoint=checkpoint, transport=transport, incomparable=why, varying=varying, tasks=tasks,
        placements=placements, hardware=facts, resolved=values,
        explained=_explained(values, resolved, seed is not None),
        provenance={**lock, "host": facts, "policy": fingerprint(checkpoint.checkpoint, resolved),
                    "tasks": _fingerprints(tasks, resolved.profile),
                    "environments": {role.value: {"env": part.env, "inventory": dict(part.inventory)}
                                     for role, part in parts.items() if part.env}},
        findings=findings, unscored=_unscored((*parts.values(), *observers), findings, lock))


def _part(role: Role, section: Section, path: Key, resolved: Resolved, installed: Sequence[Installed]) -> Part:
    try:
        check_enabled(role, section.use, resolved.sources)
        descriptor, entry = load_plugin(role, section.use, installed)
        with _attributed(role, descriptor):
            check_requirements(descriptor)
    except PlanError as error:
        located = resolved.merged.error((*path, "use"), error.message)
        raise PlanError(located.message, hint=error.hint, boundary=error.boundary) from error.__cause__
    with _attributed(role, descriptor):
        config = validate(descriptor.config, section.options, resolved.merged, path)
    return Part(role, descriptor, config, entry.distribution, entry.version)


def _housed(part: Part, section: Section, path: Key, resolved: Resolved) -> Part:
    """The part with the environment of its workers, and with what that leaves of its capabilities."""
    descriptor, env = part.descriptor, part.descriptor.env
    if env is None and section.env is not None:
        raise resolved.merged.error((*path, "env"), f"{part.role.value} {part.name!r} has no environment of its own: "
                                    "its workers run under the engine's interpreter", hint="leave env out",
                                    kind=PlanError)
    if env is not None:
        try:
            interpreter, inventory = locate(env, section.env)
        except PlanError as error:
            located = resolved.merged.error((*path, "env" if section.env else "use"), error.message)
            raise PlanError(located.message, hint=error.hint, boundary=error.boundary) from error.__cause__
        part = replace(part, env=section.env or env.name, interpreter=interpreter, inventory=inventory)
    if descriptor.narrow is not None:
        with _attributed(part.role, descriptor):
            capabilities = load_object(descriptor.narrow)(part.config, part.inventory)
            part = replace(part, descriptor=replace(descriptor, capabilities=capabilities))
    return part


def _described(part: Part, checkpoint: PolicyFacts, placements: Mapping[str, Placement], resolved: Resolved) -> Part:
    if part.descriptor.describe is None:
        return part
    profile = resolved.profile
    sampling = {Purpose.TRAIN: profile.sampling, Purpose.VALIDATION: profile.validation.sampling or profile.sampling}
    site = Site(policy=checkpoint, placement=placements.get(part.role.value, Placement()),
                interpreter=part.interpreter, inventory=part.inventory, sampling=sampling, loss=profile.grpo.loss,
                deterministic=profile.deterministic is True, limits=profile.limits)
    with _attributed(part.role, part.descriptor):
        return replace(part, facts=_plain(load_object(part.descriptor.describe)(part.config, site)))


def _tasks(resolved: Resolved, part: Part, checkpoint: PolicyFacts, seed: int) -> dict[str, Sequence[Task]]:
    """The environment's lists of tasks for training and validation, none of them empty."""
    splits = {"grpo": resolved.profile.grpo.split, "validation": resolved.profile.validation.split}
    found: dict[str, Sequence[Task]] = {}
    with _attributed(part.role, part.descriptor):
        environment = _make(part, checkpoint, resolved, seed)
        for section, split in splits.items():
            if split not in found:
                found[split] = environment.tasks(split)
            if not len(found[split]):
                raise resolved.merged.error((section, "split"), f"the environment has no tasks in split {split!r}")
    return found


def _fingerprints(tasks: Mapping[str, Sequence[Task]], settings: Profile) -> dict[str, dict[str, Any]]:
    """By split how many tasks are ``available``, how many of them the run can come to see (``count``), and one hash
    over the fingerprints of these, in order."""
    wanted = {settings.grpo.split: settings.grpo.max_steps * settings.grpo.prompts_per_step}
    held_out, at_most = settings.validation.split, settings.validation.max_tasks
    wanted[held_out] = max(wanted.get(held_out, 0), len(tasks[held_out]) if at_most is None else at_most)
    found = {}
    for split, count in wanted.items():
        digest = hashlib.sha256()
        for task in islice(tasks[split], count):
            digest.update(f"{task.id}\0{task.fingerprint}\n".encode())
        available = len(tasks[split])
        found[split] = {"available": available, "count": min(count, available), "sha256": digest.hexdigest()}
    return found


def _placements(resolved: Resolved, parts: Mapping[Role, Part], checkpoint: PolicyFacts,
                seed: int) -> tuple[dict[str, Any], dict[str, Placement]]:
    part = parts[Role.HARDWARE]
    needs = {role.value: _wanted(parts[role].config) for role in PLACED}
    needs["rollout"] = resolved.profile.rollout.workers
    with _attributed(part.role, part.descriptor):
        machine = _make(part, checkpoint, resolved, seed)
        facts, placements = _plain(machine.describe()), dict(machine.place(needs))
        if missing := sorted(needs.keys() - placements.keys()):
            raise PluginError(f"place() left out {', '.join(missing)}")
    if not needs["rollout"]:
        placements["rollout"] = replace(placements["rollout"], workers=placements["generator"].workers)
    return facts, placements


def _wanted(config: Any) -> int:
    """How many workers a plugin's own settings ask for; 0 where they leave it to the hardware."""
    wanted = getattr(config, "workers", 0)
    return wanted if isinstance(wanted, int) else 0


def _findings(parts: Mapping[Role, Part], values: Mapping[str, Any], checkpoint: PolicyFacts, resolved: Resolved,
              seed: int) -> tuple[Finding, ...]:
    part = parts.get(Role.RULESET)
    if part is None:
        return ()
    with _attributed(part.role, part.descriptor):
        facts = {role.value: dict(found.facts) for role, found in parts.items()}
        return tuple(_make(part, checkpoint, resolved, seed).check({**values, "facts": facts}))


def _make(part: Part, checkpoint: PolicyFacts, resolved: Resolved, seed: int) -> Any:
    """A role object that only answers questions: there is no fabric, clock or run folder at this point."""
    nothing: Any = None
    profile = resolved.profile
    shared = {Role.ENVIRONMENT: {"limits": profile.limits}, Role.RULESET: {"grpo": profile.grpo}}
    context = PluginContext(
        config=part.config, fabric=nothing, placement=Placement(), run_folder=Path(), policy=checkpoint, seed=seed,
        deterministic=profile.deterministic is True, clock=nothing, logger=structlog.get_logger(role=part.role.value),
        shared=shared.get(part.role, {}))
    return load_object(part.descriptor.factory)(context)


def _values(resolved: Resolved, parts: Mapping[Role, Part], observers: tuple[Part, ...], checkpoint: PolicyFacts,
            seed: int) -> dict[str, Any]:
    """The whole profile as JSON data that means the same wherever it is read."""
    values = resolved.profile.model_dump(mode="json")
    if not values["policy"]["checkpoint"].startswith(PACKAGED):
        values["policy"]["checkpoint"] = str(checkpoint.checkpoint)
    sections = {role.value: _section(part) for role, part in parts.items()}
    return {**values, **sections, "observers": [_section(part) for part in observers], "seed": seed}


def _section(part: Part) -> dict[str, Any]:
    chosen = {"use": part.name, "env": part.env} if part.env else {"use": part.name}
    return {**chosen, **part.config.model_dump(mode="json")}


def _explained(values: Mapping[str, Any], resolved: Resolved, seed_given: bool) -> tuple[Explained, ...]:
    found = explain(values, resolved.merged)
    if not seed_given:
        return found
    return tuple(replace(item, origin=Origin("--seed")) if item.key == "seed" else item for item in found)


def _unscored(parts: tuple[Part, ...], findings: tuple[Finding, ...], lock: Mapping[str, Any]) -> tuple[str, ...]:
    reasons = [f"{part.role.value} {part.name!r} is a stand-in" for part in parts if part.descriptor.stand_in]
    reasons += [f"source tree {folder} has changes that no commit holds" if lock["sources"][folder]["dirty"] else
                f"git does not say which commit source tree {folder} is" for folder in dirty_sources(lock)]
    reasons += [f"rule {finding.rule}: {finding.message}" for finding in findings if not finding.ok]
    return tuple(reasons)


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(facts), default=str))


@contextmanager
def _attributed(role: Role, descriptor: Plugin) -> Iterator[None]:
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
