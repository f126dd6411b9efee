"""``run``: plan a profile and run it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .options import Verbs, add_profile_options, planned_by


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("run", help="run a profile until its target is met", description=__doc__)
    add_profile_options(parser)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR",
                        help="where run folders go (default: runs)")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object that sums the run up")
    parser.add_argument("--no-eval", action="store_false", dest="evaluation",
                        help="leave an evaluation that is deferred to grpo-bench eval")
    parser.set_defaults(verb=_run)


def _run(arguments: argparse.Namespace) -> int:
    _, plan = planned_by(arguments)
    from ..engine import execute
    progress = not arguments.json or sys.stderr.isatty()
    return execute(plan, arguments.runs, progress=progress, json_output=arguments.json, evaluation=arguments.evaluation)
