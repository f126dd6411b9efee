"""``compare``: two runs phase by phase, what came out of them, and what was different about them."""

from __future__ import annotations

import argparse
import json

from .columns import say, width
from .options import Verbs, run_folder


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("compare", help="show two runs beside each other, phase by phase", description=__doc__)
    parser.add_argument("a", type=run_folder, metavar="RUN_A", help="a run folder: the one to compare against")
    parser.add_argument("b", type=run_folder, metavar="RUN_B", help="another run folder")
    parser.add_argument("--json", action="store_true", help="print the comparison as one JSON object")
    parser.set_defaults(verb=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from ..contract import RunFolderError
    for run in (arguments.a, arguments.b):
        if not (run / "events.jsonl").is_file():
            raise RunFolderError(f"{run} is no run folder: it has no events.jsonl")
    from ..observers import Comparison
    comparison = Comparison(arguments.a, arguments.b)
    if arguments.json:
        print(json.dumps(comparison.data))
    else:
        say(*comparison.lines(width()))
    return 0
