"""``report``: write a run's report.html anew from its other files."""

from __future__ import annotations

import argparse
from pathlib import Path

from .options import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("report", help="write a run's report anew", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.set_defaults(verb=_report)


def _report(arguments: argparse.Namespace) -> int:
    from ..contract import RunFolderError
    if not (arguments.run / "events.jsonl").is_file():
        raise RunFolderError(f"{arguments.run} is no run folder: it has no events.jsonl")
    from ..observers import write_report
    print(write_report(arguments.run))
    return 0
