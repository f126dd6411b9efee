"""``plan``: everything a run does before it launches anything."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .columns import say, width
from .options import Verbs, add_profile_options, surveyed_by
from .profiles import account

if TYPE_CHECKING:
    from ..contract import ValidationSettings
    from ..registry import Part, Plan

WIDTH = 100
"""Columns where stdout is no terminal."""
NARROWEST = 40
_LABEL = 13


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plan", help="show what a run would do, starting nothing", description=__doc__)
    add_profile_options(parser)
    parser.add_argument("--explain", action="store_true", help="say for each value which layer and line it came from")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(verb=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    resolved, plan = surveyed_by(arguments)
    if arguments.json:
        explained = {item.key: str(item.origin) for item in plan.explained} if arguments.explain else None
        print(json.dumps({**plan.to_json(), **({"explain": explained} if explained else {})}))
    elif arguments.explain:
        print("\n".join(account(resolved, plan.explained)))
    else:
        say(*_lines(plan, max(NARROWEST, width() or WIDTH)))
    return 1 if plan.missing else 0


def _lines(plan: Plan, room: int) -> Iterator[str]:
    """The plan as text: a line for each part and what it says of itself below, then what is set."""
    yield from _wrapped(f"{plan.name}: {plan.profile.description}" if plan.profile.description else plan.name, room, 2)
    yield ""
    for role, part in (*plan.parts.items(), *((part.role, part) for part in plan.observers)):
        yield from _part(plan, role.value, part, room)
    yield ""
    for label, text in _settings(plan):
        yield from _wrapped(f"{label:<{_LABEL}}{text}", room, _LABEL)
    yield ""
    for finding in plan.findings:
        yield from _wrapped(f"{'ok  ' if finding.ok else 'FAIL'} {finding.rule}: {finding.message}", room, 5)
    yield "scored: yes" if plan.scored else "scored: no"
    for reason in plan.unscored:
        yield from _wrapped(f"  {reason}", room, 4)
    if plan.missing:
        yield from ("", "missing on this machine:")
    for line in plan.missing:
        yield from _wrapped(f"  {line}", room, 4)


def _part(plan: Plan, role: str, part: Part, room: int) -> Iterator[str]:
    place = plan.placements.get(role)
    workers = [f"{place.workers} x {place.threads} threads"] if place else []
    yield from _wrapped(f"{role:<{_LABEL}}" + ", ".join([part.name, f"{part.distribution} {part.version}", *workers]),
                        room, _LABEL)
    env = f"environment {part.env}: {part.interpreter or 'not built'}" if part.env else ""
    facts = "; ".join(f"{key} {_fact(value)}" for key, value in part.facts.items() if not isinstance(value, Mapping))
    tables = [f"{key}: {_fact(value)}" for key, value in part.facts.items() if isinstance(value, Mapping)]
    lacking = [f"not here: {name} ({why})" for name, why in part.descriptor.capabilities.lacking.items()]
    for text in filter(None, (part.descriptor.summary, env, facts, *tables, *lacking)):
        yield from _wrapped(" " * _LABEL + text, room, _LABEL + 2)


def _fact(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{key} {_fact(item)}" for key, item in value.items())
    return ", ".join(map(_fact, value)) if isinstance(value, list) else str(value)


def _settings(plan: Plan) -> list[tuple[str, str]]:
    from ..observers import metric_label
    grpo, schedule, validation = plan.profile.grpo, plan.profile.schedule, plan.profile.validation
    goal = f"{metric_label(validation.metric, validation.k)} >= {validation.target:g}" if (
        validation.target is not None) else "none: all steps run"
    vocabulary = f"{plan.checkpoint.vocab_size} tokens in the vocabulary" if plan.checkpoint.vocab_size else "not here"
    validated = len(plan.validation_tasks) if validation.split in plan.tasks else validation.max_tasks or "all"
    rollout = plan.placements.get("rollout")
    workers = f"workers {rollout.workers}, each with" if rollout else "each worker"
    return [
        ("policy", f"{plan.checkpoint.checkpoint}, {vocabulary}, at most {plan.checkpoint.max_context} in a sequence"),
        ("step", f"{grpo.prompts_per_step} prompts x {grpo.generations_per_prompt} rollouts, at most "
                 f"{grpo.max_steps} steps"),
        ("schedule", "sync" if schedule.mode == "sync" else f"async, max age {schedule.max_age}, {schedule.in_flight}"),
        ("validation", f"{validated} tasks x {validation.k} rollouts, "
                       f"{validated_when(validation, grpo.max_steps)}"),
        ("target", goal),
        ("weights", f"by {plan.transport}"
                    + (f"; not checked after refits: {plan.incomparable}" if plan.incomparable else "")),
        ("rollouts", f"{workers} at most {plan.profile.limits.concurrency} in flight"),
        ("machine", ", ".join(f"{key} {value}" for key, value in plan.hardware.items())),
        ("seed", f"{plan.seed}" + (", deterministic" if plan.deterministic else "")
                 + (f"; equal seeds may differ: {plan.varying}" if plan.varying else "")),
    ]


def validated_when(validation: ValidationSettings, max_steps: int) -> str:
    """When the policy is validated, in words: ``before the first step and after steps 5, 10, 15, ...``."""
    period = validation.period
    first = max(1, -(-validation.start_at // period)) * period
    due = range(first, max_steps + 1, period)
    moments = ["before the first step"] if validation.at_start else []
    if len(due) > 3:
        moments.append("after every step" if period == first == 1 else
                       f"after steps {', '.join(map(str, due[:3]))}, ...")
    elif due:
        moments.append(f"after step{'s' if len(due) > 1 else ''} {', '.join(map(str, due))}")
    if validation.at_end and max_steps not in due:
        moments.append(f"after the last one, {max_steps}")
    return " and ".join(moments) or "never"


def _wrapped(text: str, room: int, indent: int) -> list[str]:
    return textwrap.wrap(text, room, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)
