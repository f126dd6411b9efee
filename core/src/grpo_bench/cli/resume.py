"""``resume``: go on with an interrupted run, from its last checkpoint."""

from __future__ import annotations

import argparse
import sys

from .options import Verbs, run_folder


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("resume", help="go on with an interrupted run", description=__doc__)
    parser.add_argument("run", type=run_folder, metavar="RUN", help="its run folder")
    parser.add_argument("--force", action="store_true",
                        help="go on even where profile, software or tasks are not what they were; the journal says so")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object that sums the run up")
    parser.add_argument("--no-eval", action="store_false", dest="evaluation",
                        help="leave an evaluation that is deferred to grpo-bench eval")
    parser.set_defaults(verb=_resume)


def _resume(arguments: argparse.Namespace) -> int:
    from ..engine import go_on, prepare
    plan, resumption = prepare(arguments.run, force=arguments.force)
    progress = not arguments.json or sys.stderr.isatty()
    return go_on(plan, arguments.run, resumption, progress=progress, json_output=arguments.json,
                 evaluation=arguments.evaluation)
