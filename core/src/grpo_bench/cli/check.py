"""``check``: say whether something is a result, and if not, why. It takes run folders, and whatever else an installed
ruleset knows, such as the logs and submissions of a benchmark. Exit codes: 0 all are results, 1 one is none, 2 one is
nothing that can be judged."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from .columns import tell
from .options import Verbs, run_folder

if TYPE_CHECKING:
    from ..contract import Finding
    from ..judging import Verdict


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("check", help="say whether runs, logs or submissions are results, and if not, why",
                              description=__doc__)
    parser.add_argument("paths", type=run_folder, nargs="+", metavar="PATH",
                        help="a run folder, or a log or submission that an installed ruleset knows")
    parser.add_argument("--json", action="store_true",
                        help="print the verdict as one JSON object, those on several paths as one array of them")
    parser.set_defaults(verb=_check)


def _check(arguments: argparse.Namespace) -> int:
    from ..judging import judge
    verdicts = [judge(path) for path in arguments.paths]
    if arguments.json:
        found = [_plain(verdict) for verdict in verdicts]
        print(json.dumps(found[0] if len(found) == 1 else found))
    else:
        tell(*(line for verdict in verdicts for line in _lines(verdict)), indent=4)
    return 0 if all(verdict.result for verdict in verdicts) else 1


def _plain(verdict: Verdict) -> dict[str, Any]:
    findings = [{"by": by, "rule": finding.rule, "ok": finding.ok, "message": finding.message,
                 **({"fix": finding.fix} if finding.fix else {})} for by, finding in verdict.findings]
    run = {"run": verdict.run, "summary": dict(verdict.summary)} if verdict.run else {}
    return {"path": str(verdict.path), "result": verdict.result, "findings": findings, **run}


def _lines(verdict: Verdict) -> list[str]:
    return [f"{'a result' if verdict.result else 'not a result'}: {verdict.run or verdict.path}",
            *(f"{_sign(finding)}  {by}: {finding.rule}: {finding.message}{_to_do(finding)}"
              for by, finding in verdict.findings)]


def _sign(finding: Finding) -> str:
    return "ok" if finding.ok else "??" if finding.unknown else "NO"


def _to_do(finding: Finding) -> str:
    return f"; {finding.fix}" if finding.fix and not finding.ok else ""
