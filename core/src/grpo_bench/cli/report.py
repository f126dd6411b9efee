"""``report``: show where a run's time went, and write its report.html and trace.json anew from its journal."""

from __future__ import annotations

import argparse
import json

from .columns import say, width
from .options import Verbs, run_folder


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("report", help="show where a run's time went; write its report and trace anew",
                              description=__doc__)
    parser.add_argument("run", type=run_folder, metavar="RUN", help="a run folder")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.set_defaults(verb=_report)


def _report(arguments: argparse.Namespace) -> int:
    from ..contract import RunFolderError
    if not (arguments.run / "events.jsonl").is_file():
        raise RunFolderError(f"{arguments.run} is no run folder: it has no events.jsonl")
    from ..observers import Overview
    report = Overview(arguments.run)
    if arguments.json:
        print(json.dumps(report.record))
    else:
        say(*report.lines(width()))
    report.write()
    if not arguments.json:
        say("", f"report  {report.page}", f"trace   {report.trace}")
    return 0
