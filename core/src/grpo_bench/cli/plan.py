"""``plan``: everything a run does before it launches anything."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .columns import page_width, say
from .options import Verbs, add_pace_option, add_profile_options, surveyed_by
from .plan_page import page
from .plan_placement import ranks
from .profiles import account

if TYPE_CHECKING:
    from ..contract.picture import Picture


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plan", help="show what a run would do, starting nothing", description=__doc__)
    add_profile_options(parser)
    add_pace_option(parser)
    parser.add_argument("--explain", action="store_true", help="say for each value which layer and line it came from")
    parser.add_argument("--ranks", action="store_true", help="print where each rank sits, and nothing else")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw who sits where into this file as well")
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    parser.set_defaults(verb=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    resolved, plan = surveyed_by(arguments)
    if arguments.svg is not None:
        _draw(plan.layout.picture(), plan.name, arguments.svg)
    if arguments.json:
        explained = {item.key: str(item.origin) for item in plan.explained} if arguments.explain else None
        print(json.dumps({**plan.to_json(), **({"explain": explained} if explained else {})}))
    elif arguments.explain:
        print("\n".join(account(resolved, plan.explained)))
    elif arguments.ranks:
        say(*ranks(plan.layout))
    else:
        say(*page(plan, page_width()))
    return 1 if plan.missing else 0


def _draw(picture: Picture, name: str, file: Path) -> None:
    from ..contract import InputError
    from ..observers import placement_svg
    if not picture.hosts:
        raise InputError(f"--svg {file}: profile {name!r} names no hosts, so there is nothing to draw",
                         hint="choose hardware that does")
    try:
        file.write_text(placement_svg(picture), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--svg {file}: cannot be written: {error.strerror}", hint="name another file") from None
