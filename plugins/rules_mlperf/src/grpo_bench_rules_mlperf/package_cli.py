"""``grpo-bench package``: make a submission of three runs, or the system description that it needs. Exit codes: 0 made,
1 refused, each reason named, 2 the input was wrong."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo_bench.cli.columns import tell
from grpo_bench.contract import InputError, RunFolderError

from . import package_tree as tree
from .package import Candidate, candidate, refusals
from .submission import judge_tree
from .summary import plain, score
from .system import FIELDS, STATUS, completed, described, lacking, read_values
from .system_host import from_host
from .training_6_1 import RULES


class _Refused(Exception):
    """What speaks against the package."""

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(*reasons)
        self.reasons = tuple(reasons)


def fill(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench package`` its arguments."""
    parser.description = ("Make the submission tree of three scored runs of the benchmark, check it with the official "
                          "checkers and print its score. With --from-host and no runs: write the system description.")
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="three run folders, in the order of the logs")
    parser.add_argument("--system", type=Path, required=True, metavar="FILE", help="the system description (JSON)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the submission goes: new, or an empty folder")
    parser.add_argument("--from-host", action="store_true",
                        help="fill in what FILE leaves open from the site file and this machine")
    parser.add_argument("--site", type=Path, metavar="FILE",
                        help="the site file, whose [system] describes the system (default: $GRPO_BENCH_SITE)")
    parser.add_argument("--division", choices=("closed", "open"), default="closed",
                        help="with --from-host: the division to fill in where FILE names none (default: closed)")
    parser.add_argument("--json", action="store_true", help="print what came of it as one JSON object")
    parser.set_defaults(verb=run)


def run(arguments: argparse.Namespace) -> int:
    values = _values(arguments)
    if not arguments.runs:
        return _describe(arguments, values)
    if arguments.out is None:
        raise InputError("--out is missing: where should the submission go?")
    system = described(values, arguments.system)
    tree.free(arguments.out)
    try:
        candidates = _candidates(arguments.runs)
        if reasons := refusals(candidates, system, RULES):
            raise _Refused(reasons)
        code = _code(candidates[0].statement)
        with tree.whole(arguments.out.absolute()) as made:
            rows, summary = tree.write(made, candidates, system, RULES, code)
            found = judge_tree(tree.organisation(made, system))
            if reasons := [f"{finding.rule}: {finding.message}" for finding in found if not finding.ok]:
                raise _Refused(reasons)
    except _Refused as refused:
        return _say_no(arguments, refused.reasons)
    absent = [name for name in candidates[0].statement["distributions"] if name not in code]
    if arguments.json:
        print(json.dumps({"packaged": True, "out": str(arguments.out), "code_missing": absent, **summary}))
        return 0
    checks = f"{len(found)} checks, all passed"
    print(f"{plain(rows)}\n\n{arguments.out}: {score(rows):.3f} minutes, the median of {len(rows)}; {checks}")
    if absent:
        print(f"the code of {', '.join(absent)} is not in it: what is installed here is not what ran")
    return 0


def _values(arguments: argparse.Namespace) -> dict[str, Any]:
    """What is known about the system."""
    if not arguments.from_host:
        return read_values(arguments.system)
    values = read_values(arguments.system) if os.path.lexists(arguments.system) else {}
    return completed(values, _of_site(arguments.site), {"division": arguments.division}, from_host())


def _of_site(file: Path | None) -> dict[str, str]:
    """What the site file says, as text and in the words of a system description."""
    from grpo_bench.registry import read_site_file

    site = read_site_file(file)
    said: Mapping[str, Any] = {} if site is None else site.system.model_dump(by_alias=True, exclude_none=True)
    return {name: STATUS[value] if name == "status" else str(value) for name, value in said.items() if name in FIELDS}


def _describe(arguments: argparse.Namespace, values: Mapping[str, Any]) -> int:
    if not arguments.from_host:
        raise InputError("there is nothing to package", hint="name three runs; or --from-host writes the system "
                         "description")
    if unknown := sorted(values.keys() - FIELDS.keys()):
        raise InputError(f"{arguments.system}: no field of a system description: {', '.join(unknown)}",
                         hint="take them out, or mend their names")
    part = arguments.system.with_name(f".{arguments.system.name}.part")
    try:
        part.write_text(json.dumps(values, indent=4, ensure_ascii=False) + "\n", "utf-8")
        part.replace(arguments.system)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"cannot write {arguments.system}: {error.strerror}", hint="give another --system") from error
    open_ = lacking(values)
    if arguments.json:
        print(json.dumps({"system": str(arguments.system), "lacking": open_}))
    else:
        tell(f"{arguments.system}: {len(FIELDS) - len(open_)} of {len(FIELDS)} fields are as they must be"
             + ("; fill in:" if open_ else ""), *(f"    {name}: {FIELDS[name]}" for name in open_), indent=6)
    return 0


def _candidates(folders: Sequence[Path]) -> list[Candidate]:
    """All runs with the verdicts on them; one error that names each folder that holds none."""
    from grpo_bench.judging import judge_run

    found, wrong = [], []
    for folder in folders:
        try:
            verdict = judge_run(folder)
            found.append(candidate(folder, verdict.run, verdict.findings, verdict.events))
        except RunFolderError as error:
            wrong.append(error.message)
    if wrong:
        raise RunFolderError("\n    ".join(wrong), hint="give run folders that hold a run each")
    return found


def _code(statement: Mapping[str, Any]) -> tree.Code:
    """The files of those distributions that are installed here as they ran."""
    from grpo_bench.registry import distribution_files, distribution_lock

    ran = statement["distributions"]
    here = distribution_lock(ran)["distributions"]
    return {name: distribution_files(name) for name, found in ran.items()
            if here.get(name, {}).get("sha256") == found["sha256"]}


def _say_no(arguments: argparse.Namespace, reasons: Sequence[str]) -> int:
    if arguments.json:
        print(json.dumps({"packaged": False, "out": str(arguments.out), "reasons": reasons}))
    else:
        tell("not packaged:", *(f"    {reason}" for reason in reasons), indent=6)
    return 1
