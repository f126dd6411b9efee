"""Making the plan: the real path of a run up to its launch.

Order matters for messages: first every plugin must load, then each section must be valid, then the parts must fit, then
the policy and the tasks must be there; machine, ruleset and provenance come last. An error ends it at once; what this
machine lacks does not: all of that is gathered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from ..contract import Finding, Placement, PluginError, PolicyFacts, RegistryError, Role, Task
from .checkpoint import PACKAGED, expected, fingerprint, policy_facts
from .comparison import incomparable, without_comparisons
from .determinism import settled
from .fit import check_fit
from .layers import Origin
from .missing import Shortage, lacking
from .parts import attributed, described, find_parts, made, plain
from .plan import Part, Plan
from .profile import MAX_SEED, Profile
from .provenance import dirty_sources, distribution_lock
from .resolved import Explained, Resolved, explain

PLACED = (Role.TRAINER, Role.GENERATOR)
_POLICY = "the policy's checkpoint"


def make_plan(resolved: Resolved, seed: int | None = None) -> Plan:
    """Load, validate and negotiate everything that profile needs. ``seed`` None: the profile's own.

    Raises InputError where the profile cannot run, which is Missing where it could elsewhere; PluginError where a
    plugin fails while it is asked.
    """
    plan = survey(resolved, seed)
    if plan.missing:
        raise lacking(plan.name, plan.missing)
    return plan


def survey(resolved: Resolved, seed: int | None = None) -> Plan:
    """The plan as far as it can be made on this machine: ``missing`` says what it lacks."""
    profile = resolved.profile
    run_seed = profile.seed if seed is None else seed
    if not 0 <= run_seed <= MAX_SEED:
        raise RegistryError(f"seed: should be between 0 and {MAX_SEED}, got {run_seed}")
    lacks = Shortage()
    parts, observers = find_parts(resolved, lacks)
    descriptors = {role: part.descriptor for role, part in parts.items()}
    transport = check_fit(resolved, descriptors)
    resolved, varying = settled(resolved, descriptors)
    if why := incomparable(parts[Role.TRAINER].descriptor, parts[Role.GENERATOR].descriptor):
        resolved = without_comparisons(resolved, why)
    weights = not all(parts[role].descriptor.stand_in for role in PLACED)
    checkpoint = lacks.ask(lambda: policy_facts(resolved, weights=weights)) or expected(resolved)
    values = _values(resolved, parts, observers, checkpoint, run_seed)
    tasks = _tasks(resolved, parts[Role.ENVIRONMENT], checkpoint, run_seed, lacks)
    facts, placements = _placements(resolved, parts, checkpoint, run_seed, lacks)
    parts = {role: _described(part, checkpoint, placements, facts, resolved, lacks) for role, part in parts.items()}
    findings = _findings(parts, values, checkpoint, resolved, run_seed, lacks)
    lock = distribution_lock(part.distribution for part in (*parts.values(), *observers))
    return Plan(
        name=resolved.name, profile=resolved.profile, seed=run_seed, parts=parts, observers=observers,
        checkpoint=checkpoint, transport=transport, incomparable=why, varying=varying, tasks=tasks,
        placements=placements, hardware=facts, resolved=values,
        explained=_explained(values, resolved, seed is not None),
        provenance={**lock, "host": facts,
                    "policy": fingerprint(checkpoint.checkpoint, resolved) if checkpoint.vocab_size else {},
                    "tasks": _fingerprints(tasks, resolved.profile),
                    "environments": {role.value: {"env": part.env, "inventory": dict(part.inventory)}
                                     for role, part in parts.items() if part.env}},
        findings=findings, unscored=_unscored((*parts.values(), *observers), findings, lock), missing=lacks.lines)


def _described(part: Part, checkpoint: PolicyFacts, placements: Mapping[str, Placement], machine: Mapping[str, Any],
               resolved: Resolved, lacks: Shortage) -> Part:
    """The part with what it tells about itself, as far as it can where something is missing."""
    known = checkpoint.vocab_size > 0
    without = [_POLICY] if part.role in PLACED and not known else []
    without += ["its environment"] if part.env and part.interpreter is None else []
    placement = placements.get(part.role.value, Placement())
    return lacks.ask(lambda: described(part, checkpoint, placement, machine, resolved), _called(part),
                     without=without, lenient=not known) or part


def _called(part: Part) -> str:
    return f"{part.role.value} {part.name!r}"


def _tasks(resolved: Resolved, part: Part, checkpoint: PolicyFacts, seed: int,
           lacks: Shortage) -> dict[str, Sequence[Task]]:
    """The environment's lists of tasks for training and validation, none of them empty; those that are here."""
    splits = {"grpo": resolved.profile.grpo.split, "validation": resolved.profile.validation.split}
    lenient = not checkpoint.vocab_size
    environment = lacks.ask(lambda: made(part, checkpoint, resolved, seed), _called(part), lenient=lenient)
    found: dict[str, Sequence[Task]] = {}
    for section, split in splits.items():
        if environment is None or split in found:
            continue
        listed = lacks.ask(partial(_listed, part, environment, split), _called(part), lenient=lenient)
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


def _placements(resolved: Resolved, parts: Mapping[Role, Part], checkpoint: PolicyFacts, seed: int,
                lacks: Shortage) -> tuple[dict[str, Any], dict[str, Placement]]:
    """What the hardware says of itself, and where it places the workers; nothing where it cannot."""
    part = parts[Role.HARDWARE]
    needs = {role.value: _wanted(parts[role].config) for role in PLACED}
    needs["rollout"] = resolved.profile.rollout.workers
    machine = lacks.ask(lambda: made(part, checkpoint, resolved, seed), _called(part))
    facts = lacks.ask(lambda: _facts(part, machine), _called(part)) if machine else None
    placements = lacks.ask(lambda: _placed(part, machine, needs), _called(part)) if machine else None
    return facts or {}, placements or {}


def _facts(part: Part, machine: Any) -> dict[str, Any]:
    with attributed(part.role, part.descriptor):
        return plain(machine.describe())


def _placed(part: Part, machine: Any, needs: Mapping[str, int]) -> dict[str, Placement]:
    with attributed(part.role, part.descriptor):
        placements = dict(machine.place(needs))
        if left_out := sorted(needs.keys() - placements.keys()):
            raise PluginError(f"place() left out {', '.join(left_out)}")
    if not needs["rollout"]:
        placements["rollout"] = replace(placements["rollout"], workers=placements["generator"].workers)
    return placements


def _wanted(config: Any) -> int:
    """How many workers a plugin's own settings ask for; 0 where they leave it to the hardware."""
    wanted = getattr(config, "workers", 0)
    return wanted if isinstance(wanted, int) else 0


def _findings(parts: Mapping[Role, Part], values: Mapping[str, Any], checkpoint: PolicyFacts, resolved: Resolved,
              seed: int, lacks: Shortage) -> tuple[Finding, ...]:
    part = parts.get(Role.RULESET)
    if part is None:
        return ()
    if lacks.lines:
        lacks.leave(_called(part), "what is missing")
        return ()
    ruleset = made(part, checkpoint, resolved, seed)
    with attributed(part.role, part.descriptor):
        facts = {role.value: dict(found.facts) for role, found in parts.items()}
        return tuple(ruleset.check({**values, "facts": facts}))


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
