"""The plan as a page of text: what runs, on what, where, when it is validated, and whether it would count.

Sections follow each other, each a label and lines below; a rule comes with its value, where that was set and why the
rule is there. Nothing is left out that decides a result; what is wide is in ``--json`` alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .columns import wrapped
from .plan_placement import placement
from .plan_time import times

if TYPE_CHECKING:
    from ..contract import Finding
    from ..registry import Explained, Part, Plan

_LABEL = 13
_MEMORY = "memory_per_rank"
_ELSEWHERE = frozenset({_MEMORY, "memory_bytes", "memory_assumed", "domains"})
"""Facts that have a section of their own."""


def page(plan: Plan, room: int) -> Iterator[str]:
    """The lines of it, at most ``room`` wide."""
    yield from wrapped(f"{plan.name}: {plan.profile.description}" if plan.profile.description else plan.name, room, 2)
    yield ""
    for role, part in (*plan.parts.items(), *((part.role, part) for part in plan.observers)):
        yield from _part(plan, role.value, part, room)
    yield ""
    for label, text in _settings(plan):
        yield from _labelled(label, text, room)
    sections = (("identities", _wrapped(_identities(plan), room)), ("placement", placement(plan.layout, room - 2)),
                ("memory", _wrapped(_memory(plan), room)), ("time", times(plan.estimate, room - 2)))
    for title, lines in sections:
        for number, line in enumerate(lines):
            yield from ("", f"{title}:") if not number else ()
            yield f"  {line}".rstrip()
    yield ""
    yield from _rules(plan, room)
    yield _verdict(plan)
    for reason in plan.unscored:
        yield from wrapped(f"  {reason}", room, 4)
    if plan.missing:
        yield from ("", "missing on this machine:")
    for line in plan.missing:
        yield from wrapped(f"  {line}", room, 4)


def _wrapped(lines: Iterator[str], room: int) -> Iterator[str]:
    for line in lines:
        yield from wrapped(line, room - 2, 4)


def _part(plan: Plan, role: str, part: Part, room: int) -> Iterator[str]:
    place = plan.placements.get(role)
    workers = [f"{place.workers} x {place.threads} threads"] if place else []
    yield from _labelled(role, ", ".join([part.name, f"{part.distribution} {part.version}", *workers]), room)
    env = f"environment {part.env}: {part.interpreter or 'not built'}" if part.env else ""
    known = {key: value for key, value in part.facts.items() if key not in _ELSEWHERE}
    facts = "; ".join(f"{key} {_fact(value)}" for key, value in known.items() if not isinstance(value, Mapping))
    tables = [f"{key}: {_fact(value)}" for key, value in known.items() if isinstance(value, Mapping) and value]
    lacking = [f"not here: {name} ({why})" for name, why in part.descriptor.capabilities.lacking.items()]
    for text in filter(None, (part.descriptor.summary, env, facts, *tables, *lacking)):
        yield from wrapped(" " * _LABEL + text, room, _LABEL + 2)


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_fact(item)}" for key, item in value.items())
    return ", ".join(map(_fact, value)) if isinstance(value, list) else str(value)


def _settings(plan: Plan) -> list[tuple[str, str]]:
    from ..observers import metric_label
    grpo, schedule, validation = plan.profile.grpo, plan.profile.schedule, plan.profile.validation
    batch = grpo.prompts_per_step * grpo.generations_per_prompt
    goal = f"{metric_label(validation.metric, validation.k)} >= {validation.target:g}" if (
        validation.target is not None) else "none: all steps run"
    vocabulary = f"{plan.checkpoint.vocab_size} tokens in the vocabulary" if plan.checkpoint.vocab_size else "not here"
    rollout = plan.placements.get("rollout")
    workers = f"workers {rollout.workers}, each with" if rollout else "each worker"
    machine = ", ".join(f"{key} {_fact(value)}" for key, value in plan.hardware.items() if key not in _ELSEWHERE)
    return [
        ("policy", f"{plan.checkpoint.checkpoint}, {vocabulary}, at most {plan.checkpoint.max_context} in a sequence"),
        ("step", f"{grpo.prompts_per_step} prompts x {grpo.generations_per_prompt} rollouts, at most "
                 f"{grpo.max_steps} steps, {batch * grpo.max_steps:,} samples"),
        ("schedule", ("sync" if schedule.mode == "sync" else f"async, max age {schedule.max_age}, {schedule.in_flight}")
         + (f", at most {schedule.prompts_in_flight} prompts in flight" if schedule.prompts_in_flight else "")),
        ("validation", _validation(plan)),
        ("target", goal),
        ("weights", f"by {plan.transport}"
                    + (f"; not checked after refits: {plan.incomparable}" if plan.incomparable else "")),
        ("rollouts", f"{workers} at most {plan.profile.limits.concurrency} in flight"),
        ("machine", machine),
        ("seed", _seed(plan)),
    ]


def _seed(plan: Plan) -> str:
    given = plan.source("seed")
    drawn = plan.profile.seed == "random" and not (given and given.origin.layer == "--seed")
    return (f"{plan.seed}" + (", drawn for this plan; a run draws its own" if drawn else "")
            + (", deterministic" if plan.deterministic else "")
            + (f"; equal seeds may differ: {plan.varying}" if plan.varying else ""))


def _validation(plan: Plan) -> str:
    from ..engine import due_steps
    grpo, validation = plan.profile.grpo, plan.profile.validation
    tasks = len(plan.validation_tasks) if validation.split in plan.tasks else validation.max_tasks or "all"
    due = due_steps(plan, 0)
    after = [step for step in due if step]
    text = f"{tasks} tasks x {validation.k} rollouts, {validated_when(due, grpo.max_steps)}"
    if not after or not validation.deferred:
        return text
    batch = grpo.prompts_per_step * grpo.generations_per_prompt
    return (f"{text}: {len(after)} times at most, at {after[0] * batch:,} to {after[-1] * batch:,} samples; deferred: "
            "weights are saved after each and validated when training is over, until the target is met")


def validated_when(due: Sequence[int], max_steps: int) -> str:
    """When the policy is validated, in words, from the steps after which it is due (0: before the first step):
    ``before the first step and after steps 5, 10, 15, ..., 50``."""
    steps = [step for step in due if step]
    moments = ["before the first step"] if len(steps) < len(due) else []
    if steps == [*range(1, max_steps + 1)]:
        moments.append("after every step")
    elif steps:
        some = [*map(str, steps)] if len(steps) <= 4 else [*map(str, steps[:3]), "...", str(steps[-1])]
        moments.append(f"after step{'s' if len(steps) > 1 else ''} {', '.join(some)}")
    return " and ".join(moments) or "never"


def _identities(plan: Plan) -> Iterator[str]:
    """Hashes: of what is here, and those that the profile wants."""
    for name, file in plan.provenance["policy"].items():
        if file["sha256"]:
            yield f"policy/{name}: {file['bytes']:,} bytes, sha256 {file['sha256']}"
    for split, found in plan.provenance["tasks"].items():
        yield f"tasks of split {split}: the first {found['count']} of {found['available']}, sha256 {found['sha256']}"
    for role, part in plan.parts.items():
        for key, value in _hashes(part.facts, role.value):
            yield f"here: {key} {value}"
    for item in plan.explained:
        if item.key.endswith("sha256") and item.value is not None:
            yield f"wanted: {item.key} {item.value}  [{_place(item)}]"


def _hashes(facts: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """What a part says of the files that it reads."""
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _hashes(value, f"{path}.{key}")
        elif "sha256" in f"{path}.{key}" and isinstance(value, str):
            yield f"{path}.{key}", value


def _memory(plan: Plan) -> Iterator[str]:
    room = plan.hardware.get("gpu_memory_bytes")
    for role, part in plan.parts.items():
        if _MEMORY in part.facts:
            of = f" of {room / 2**30:,.1f} GiB" if room and plan.placements[role.value].nodes else ""
            yield f"{role.value}, each rank{of}: {_fact(part.facts[_MEMORY])}"
    for role, part in plan.parts.items():
        for line in part.facts.get("memory_assumed", ()):
            yield f"{role.value}, assumed: {line}"


def _rules(plan: Plan, room: int) -> Iterator[str]:
    """Those that do not hold first, then those that cannot be judged here."""
    groups = {"FAIL": [found for found in plan.findings if not found.ok and not found.unknown],
              "?": [found for found in plan.findings if found.unknown],
              "ok": [found for found in plan.findings if found.ok]}
    if plan.findings:
        words = (f"{len(groups['FAIL'])} do not hold", f"{len(groups['?'])} cannot be judged here",
                 f"{len(groups['ok'])} hold")
        division = plan.resolved["ruleset"].get("division")
        yield f"rules{f' of the {division} division' if division else ''}: {', '.join(words)}"
    for sign, findings in groups.items():
        for finding in findings:
            yield from _rule(plan, sign, finding, room)
    if plan.findings:
        yield ""


def _rule(plan: Plan, sign: str, finding: Finding, room: int) -> Iterator[str]:
    source = plan.source(finding.key)
    place = f"  [{_place(source)}]" if source else ""
    yield from wrapped(f"{sign:<5}{finding.rule}: {finding.message}{place}", room, 5)
    for text in (finding.why, "" if finding.ok or not finding.fix else f"to do: {finding.fix}"):
        yield from wrapped(f"     {text}", room, 5) if text else ()


def _place(item: Explained) -> str:
    """Layer, file and line, the file by its name: --json and --explain have its path."""
    origin = item.origin
    line = f":{origin.line}" if origin.line else ""
    return f"{origin.layer} {origin.file.name}{line}" if origin.file else origin.layer


def _verdict(plan: Plan) -> str:
    if plan.scored:
        return "scored: as far as it can be judged here" if plan.missing else "scored: yes"
    return "scored: no"


def _labelled(label: str, text: str, room: int) -> list[str]:
    return wrapped(f"{label:<{_LABEL}}{text}", room, _LABEL)
