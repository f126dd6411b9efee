"""``eval``: evaluate the weights that a run saved for that, or go on with it."""

from __future__ import annotations

import argparse
import sys

from .options import Verbs, run_folder


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("eval", help="evaluate the weights that a run saved", description=__doc__)
    parser.add_argument("run", type=run_folder, metavar="RUN", help="its run folder, or a copy of it")
    parser.add_argument("--force", action="store_true",
                        help="evaluate even where software or tasks are not what they were; the journal says so")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object that sums the run up")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="where and how it runs here, as in policy.checkpoint=DIR or generator.workers=4; may be "
                             "repeated")
    parser.set_defaults(verb=_eval)


def _eval(arguments: argparse.Namespace) -> int:
    from ..engine import evaluate
    progress = not arguments.json or sys.stderr.isatty()
    return evaluate(arguments.run, overrides=arguments.overrides, force=arguments.force, progress=progress,
                    json_output=arguments.json)
