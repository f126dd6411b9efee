"""Making the plan: the real path of a run up to its launch.

Order matters for messages: first every plugin must load, then each section must be valid, then the parts must fit, then
the policy and the tasks must be there; machine, ruleset and provenance come last. An error ends it at once; what this
machine lacks does not: all of that is gathered.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from ..contract import (
    Finding, Missing, Pace, Placement, PolicyFacts, RegistryError, Role, Task, load_object,
)
from .checkpoint import PACKAGED, expected, fingerprint, outline_place, policy_facts
from .comparison import incomparable, without_comparisons
from .determinism import settled
from .estimate import Estimate, estimated
from .fit import check_fit
from .layers import Origin
from .missing import Shortage, lacking
from .parts import attributed, called, described, find_parts, made, plain
from .placing import PLACED, Placed, place
from .plan import Part, Plan
from .profile import MAX_SEED, RANDOM, Profile
from .provenance import distribution_lock, source_faults
from .references import reference
from .resolved import Explained, Resolved, explain
from .site import unresolved
from .statement import statement

Idle = Mapping[Role, Mapping[str, Any]]
_POLICY = "the policy's checkpoint"


def make_plan(resolved: Resolved, seed: int | None = None, *, idle: Idle = MappingProxyType({}),
              pace: Pace | None = None) -> Plan:
    """Load, validate and negotiate everything that profile needs. ``seed`` None: the profile's own, which may be drawn.
    ``idle``: the facts of parts that have no work to do, and so need neither environment nor place here. ``pace``: how
    fast a run like it was; None: what the ruleset knows of that.

    Raises InputError where the profile cannot run, which is Missing where it could elsewhere; PluginError where a
    plugin fails while it is asked.
    """
    plan = survey(resolved, seed, idle=idle, pace=pace)
    if plan.missing:
        raise lacking(plan.name, plan.missing)
    return plan


def survey(resolved: Resolved, seed: int | None = None, *, idle: Idle = MappingProxyType({}),
           pace: Pace | None = None) -> Plan:
    """The plan as far as it can be made on this machine: ``missing`` says what it lacks."""
    profile = resolved.profile
    run_seed, seed_from = _seed(resolved, seed)
    lacks = Shortage(unresolved(resolved))
    parts, observers = find_parts(resolved, lacks, idle)
    descriptors = {role: part.descriptor for role, part in parts.items()}
    transport = check_fit(resolved, descriptors, idle)
    resolved, varying = settled(resolved, descriptors)
    if why := incomparable(parts[Role.TRAINER].descriptor, parts[Role.GENERATOR].descriptor):
        resolved = without_comparisons(resolved, why)
    weights = not all(parts[role].descriptor.stand_in for role in PLACED)
    found = reference(profile.policy.checkpoint) is None and lacks.ask(lambda: policy_facts(resolved, weights=weights))
    checkpoint = found or expected(resolved)
    values = _values(resolved, parts, observers, checkpoint, run_seed)
    tasks = _tasks(resolved, parts[Role.ENVIRONMENT], checkpoint, run_seed, lacks)
    placed = place(resolved, parts, checkpoint, run_seed, lacks, idle)
    parts = {role: replace(part, facts=idle[role]) if role in idle else
             _described(part, checkpoint, placed, resolved, lacks) for role, part in parts.items()}
    ruleset = made(parts[Role.RULESET], checkpoint, resolved, run_seed) if Role.RULESET in parts else None
    findings = _findings(ruleset, parts, values, lacks)
    everybody = (*parts.values(), *observers)
    lock = distribution_lock(part.distribution for part in everybody)
    return Plan(
        name=resolved.name, profile=resolved.profile, seed=run_seed, parts=parts, observers=observers,
        checkpoint=checkpoint, transport=transport, incomparable=why, varying=varying, tasks=tasks,
        needs=placed.needs, placements=placed.placements, hardware=placed.machine, form=placed.form,
        resolved=values,
        explained=_explained(values, resolved, seed_from),
        provenance=statement(lock, everybody, host=placed.machine,
                             policy=fingerprint(checkpoint.checkpoint, resolved) if checkpoint.vocab_size else {},
                             tasks=_fingerprints(tasks, resolved.profile)),
        findings=findings, unscored=_unscored(everybody, findings, lock, lacks),
        estimate=_estimate(ruleset, parts, values, resolved.profile, pace), missing=lacks.lines)


def _seed(resolved: Resolved, given: int | None) -> tuple[int, Origin | None]:
    """The run's seed, and where it is from unless the profile says it."""
    wanted = resolved.profile.seed
    if given is not None:
        if not 0 <= given <= MAX_SEED:
            raise RegistryError(f"seed: should be between 0 and {MAX_SEED}, got {given}")
        return given, Origin("--seed")
    if wanted == RANDOM:
        origin = resolved.merged.origin(("seed",))
        return secrets.randbelow(MAX_SEED + 1), replace(origin, note="random: drawn for this plan")
    return wanted, None


def _described(part: Part, checkpoint: PolicyFacts, placed: Placed, resolved: Resolved, lacks: Shortage) -> Part:
    """The part with what it tells about itself, as far as it can where something is missing."""
    policy = [_POLICY] if part.role in PLACED and not checkpoint.vocab_size else []
    env = ["its environment"] if part.env and part.interpreter is None else []
    known = _known(checkpoint)
    placement = placed.placements.get(part.role.value, Placement())

    def in_part(error: Missing) -> Part | None:
        return replace(part, facts=plain(error.facts)) if error.facts else None

    found = lacks.ask(lambda: described(part, checkpoint, placement, placed.machine, resolved), called(part),
                      without=env if known else [*policy, *env], lenient=not known, instead=in_part)
    if found is not None and part.descriptor.describe is not None and (policy or env):
        lacks.leave(called(part), *policy, *env, partly=True)
    return found or part


def _known(checkpoint: PolicyFacts) -> bool:
    """Whether the policy's shape is known, from its checkpoint or without it."""
    return bool(checkpoint.vocab_size or checkpoint.tensors)


def _tasks(resolved: Resolved, part: Part, checkpoint: PolicyFacts, seed: int,
           lacks: Shortage) -> dict[str, Sequence[Task]]:
    """The environment's lists of tasks for training and validation, none of them empty; those that are here."""
    splits = {"grpo": resolved.profile.grpo.split, "validation": resolved.profile.validation.split}
    lenient = not _known(checkpoint)
    environment = lacks.ask(lambda: made(part, checkpoint, resolved, seed), called(part), lenient=lenient)
    found: dict[str, Sequence[Task]] = {}
    for section, split in splits.items():
        if environment is None or split in found:
            continue
        listed = lacks.ask(partial(_listed, part, environment, split), called(part), lenient=lenient)
        if listed is None:
            continue
        if not len(listed):
            raise resolved.merged.error((section, "split"), f"the environment has no tasks in split {split!r}")
        found[split] = listed
    return found


def _listed(part: Part, environment: Any, split: str) -> Sequence[Task]:
    with attributed(part.role, part.descriptor):
        return environment.tasks(split)


def _fingerprints(tasks: Mapping[str, Sequence[Task]], settings: Profile) -> dict[str, dict[str, Any]]:
    """By split how many tasks are ``available``, how many of them the run can come to see (``count``), and one hash
    over the fingerprints of these, in order."""
    wanted = {settings.grpo.split: settings.grpo.max_steps * settings.grpo.prompts_per_step}
    held_out, at_most = settings.validation.split, settings.validation.max_tasks
    wanted[held_out] = max(wanted.get(held_out, 0), len(tasks.get(held_out, ())) if at_most is None else at_most)
    found = {}
    for split, count in ((split, count) for split, count in wanted.items() if split in tasks):
        digest = hashlib.sha256()
        for task in islice(tasks[split], count):
            digest.update(f"{task.id}\0{task.fingerprint}\n".encode())
        available = len(tasks[split])
        found[split] = {"available": available, "count": min(count, available), "sha256": digest.hexdigest()}
    return found


def _findings(ruleset: Any, parts: Mapping[Role, Part], values: Mapping[str, Any],
              lacks: Shortage) -> tuple[Finding, ...]:
    if ruleset is None:
        return ()
    with attributed(Role.RULESET, parts[Role.RULESET].descriptor):
        facts = {role.value: dict(found.facts) for role, found in parts.items()}
        return tuple(ruleset.check({**values, "facts": facts, "missing": list(lacks.lines)}))


def _estimate(ruleset: Any, parts: Mapping[Role, Part], values: Mapping[str, Any], profile: Profile,
              pace: Pace | None) -> Estimate | None:
    """How long it takes at ``pace``, or at that which the ruleset knows; None where nobody knows one."""
    last = profile.grpo.max_steps
    if ruleset is None:
        is_due = profile.validation.is_due
        return estimated(pace, profile, [step for step in range(1, last + 1) if is_due(step, last)]) if pace else None
    descriptor = parts[Role.RULESET].descriptor
    with attributed(Role.RULESET, descriptor):
        found = pace or (load_object(descriptor.pace)(values) if descriptor.pace else None)
        due = [step for step in range(1, last + 1) if ruleset.should_validate(step, last)] if found else []
    return estimated(found, profile, due) if found else None


def _values(resolved: Resolved, parts: Mapping[Role, Part], observers: tuple[Part, ...], checkpoint: PolicyFacts,
            seed: int) -> dict[str, Any]:
    """The whole profile as JSON data that means the same wherever it is read."""
    values = resolved.profile.model_dump(mode="json")
    if not values["policy"]["checkpoint"].startswith(PACKAGED):
        values["policy"]["checkpoint"] = str(checkpoint.checkpoint)
    values["policy"]["config"] = outline_place(resolved)
    sections = {role.value: _section(part) for role, part in parts.items()}
    return {**values, **sections, "observers": [_section(part) for part in observers], "seed": seed}


def _section(part: Part) -> dict[str, Any]:
    chosen = {"use": part.name, "env": part.env} if part.env else {"use": part.name}
    return {**chosen, **part.config.model_dump(mode="json")}


def _explained(values: Mapping[str, Any], resolved: Resolved, seed_from: Origin | None) -> tuple[Explained, ...]:
    found = explain(values, resolved.merged)
    if seed_from is None:
        return found
    return tuple(replace(item, origin=seed_from) if item.key == "seed" else item for item in found)


def _unscored(parts: tuple[Part, ...], findings: tuple[Finding, ...], lock: Mapping[str, Any],
              lacks: Shortage) -> tuple[str, ...]:
    """What cannot be judged since something is missing says nothing: such a plan does not run."""
    reasons = [f"{part.role.value} {part.name!r} is a stand-in" for part in parts if part.descriptor.stand_in]
    reasons += source_faults(lock)
    reasons += [f"rule {finding.rule}: {finding.message}" for finding in findings
                if not finding.ok and not (finding.unknown and lacks.lines)]
    return tuple(reasons)
