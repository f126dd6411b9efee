"""``plan``: everything a run does before it launches anything."""

from __future__ import annotations

import argparse
import json

from .columns import page_width, say
from .options import Verbs, add_profile_options, surveyed_by
from .plan_page import page
from .profiles import account


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
        say(*page(plan, page_width()))
    return 1 if plan.missing else 0
