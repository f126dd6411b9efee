"""``plan``: everything a run does before it launches anything."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from .options import Verbs, add_profile_options, planned_by
from .profiles import account

if TYPE_CHECKING:
    from rich.table import Table

    from ..registry import Plan

WIDTH = 160
"""Columns where stdout is no terminal."""


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plan", help="show what a run would do, starting nothing", description=__doc__)
    add_profile_options(parser)
    parser.add_argument("--explain", action="store_true", help="say for each value which layer and line it came from")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(verb=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    resolved, plan = planned_by(arguments)
    if arguments.json:
        explained = {item.key: str(item.origin) for item in plan.explained} if arguments.explain else None
        print(json.dumps({**plan.to_json(), **({"explain": explained} if explained else {})}))
    elif arguments.explain:
        print("\n".join(account(resolved, plan.explained)))
    else:
        _show(plan)
    return 0


def _show(plan: Plan) -> None:
    from rich.console import Console
    from rich.text import Text
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    settings = plan.profile
    console.print(Text.assemble((plan.name, "bold"), " ", settings.description))
    console.print(_parts(plan))
    console.print(_rows(_settings(plan)))
    for finding in plan.findings:
        console.print(f"{'ok  ' if finding.ok else 'FAIL'} {finding.rule}: {finding.message}", markup=False)
    console.print("scored: yes" if plan.scored else "scored: no", *(f"\n  {reason}" for reason in plan.unscored),
                  markup=False, sep="")


def _parts(plan: Plan) -> Table:
    rows = []
    for role, part in (*plan.parts.items(), *((part.role, part) for part in plan.observers)):
        place = plan.placements.get(role.value)
        workers = f"{place.workers} x {place.threads} threads" if place else ""
        facts = "; ".join([part.descriptor.summary, *(f"{key} {value}" for key, value in part.facts.items())])
        rows.append((role.value, part.name, f"{part.distribution} {part.version}", workers, facts))
    return _rows(rows)


def _settings(plan: Plan) -> list[tuple[str, str]]:
    grpo, schedule, validation = plan.profile.grpo, plan.profile.schedule, plan.profile.validation
    goal = f"{validation.metric} >= {validation.target}" if validation.metric else "none: all steps run"
    rollout = plan.placements["rollout"]
    return [
        ("policy", f"{plan.checkpoint.checkpoint}, {plan.checkpoint.vocab_size} tokens in the vocabulary, "
                   f"at most {plan.checkpoint.max_context} in a sequence"),
        ("step", f"{grpo.prompts_per_step} prompts x {grpo.generations_per_prompt} rollouts, at most "
                 f"{grpo.max_steps} steps"),
        ("schedule", "sync" if schedule.mode == "sync" else f"async, max age {schedule.max_age}, {schedule.in_flight}"),
        ("validation", f"{validation.max_tasks or 'all'} tasks x {validation.k} from step {validation.start_at} every "
                       f"{validation.period}"),
        ("target", goal),
        ("weights", f"by {plan.transport}"
                    + (f"; not checked after refits: {plan.incomparable}" if plan.incomparable else "")),
        ("rollouts", f"workers {rollout.workers}, each with at most {plan.profile.limits.concurrency} in flight"),
        ("machine", ", ".join(f"{key} {value}" for key, value in plan.hardware.items())),
        ("seed", f"{plan.seed}" + (", deterministic" if plan.profile.deterministic else "")),
    ]


def _rows(rows: list[Any]) -> Table:
    from rich.table import Table
    from rich.text import Text
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for number in range(len(rows[0])):
        table.add_column(style="cyan" if number == 0 else "", no_wrap=number < len(rows[0]) - 1, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
