"""The folder of a submission, in the structure that the rules on submissions want.

    ORG/systems/SYSTEM.json
    ORG/results/SYSTEM/BENCHMARK/result_0.txt ...
    ORG/benchmarks/BENCHMARK/implementations/grpo-bench/     the code that ran
    ORG/benchmarks/BENCHMARK/implementations/SYSTEM/         how it ran there
    summary.json, summary.md                                 beside ORG, where no checker looks

It is written under another name, judged, and then given its own at once; where that fails nothing of it stays.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError

from . import package_words as words
from .package import IMPLEMENTATION, Candidate, revisions
from .rules import Rules
from .score import score_of
from .summary import Row, markdown, row, to_json
from .system import SystemDescription, path_name

Code = Mapping[str, Sequence[tuple[str, Path]]]
"""By distribution, its files by their names in the tree."""


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``folder`` at the end, unless an error is raised. InputError where that is
    taken or cannot be."""
    free(folder)
    made = folder.with_name(f".new-{folder.name}-{os.getpid()}")
    new = [parent for parent in folder.parents if not parent.exists()]
    try:
        made.mkdir(parents=True)
        yield made
        made.rename(folder)
    except BaseException as error:
        shutil.rmtree(made, ignore_errors=True)
        for parent in new:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"cannot write {folder}: {error.strerror or error}", hint="give another --out") from error
        raise


def free(folder: Path) -> None:
    """InputError unless a package can get this name."""
    try:
        if os.path.lexists(folder) and (not folder.is_dir() or folder.is_symlink() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is no empty folder", hint="give another --out; nothing is replaced")
    except OSError as error:
        raise InputError(f"{folder} cannot be looked at: {error.strerror}", hint="give another --out") from error


def write(folder: Path, runs: Sequence[Candidate], system: SystemDescription, rules: Rules,
          code: Code) -> tuple[list[Row], dict[str, Any]]:
    """Write the tree into an empty folder; the rows of its summary, and the summary as JSON data."""
    org = organisation(folder, system)
    results = org / "results" / system.id / rules.benchmark
    results.mkdir(parents=True)
    (org / "systems").mkdir()
    (org / "systems" / f"{system.id}.json").write_text(system.to_json(), "utf-8")
    rows = []
    for number, run in enumerate(runs):
        name = f"result_{number}.txt"
        (results / name).write_text(run.log, "utf-8")
        rows.append(row(name, run.run, run.lines))
    implementations = org / "benchmarks" / rules.benchmark / "implementations"
    _write_code(implementations / IMPLEMENTATION, runs[0].statement, code)
    _write_runs(implementations / system.id, runs, system, rules)
    facts = {"benchmark": rules.benchmark, "ruleset": rules.name, "checker": f"mlperf-logging {rules.checker}",
             "submitter": system.submitter, "division": system.division, "system": system.system_name,
             "status": system.status, "profile": runs[0].started["profile"]}
    clocks = [clock.to_json() if (clock := score_of(run.events)) is not None else {} for run in runs]
    summary = to_json(rows, facts, clocks)
    _write_json(folder / "summary.json", summary)
    (folder / "summary.md").write_text(markdown(rows, facts), "utf-8")
    return rows, summary


def organisation(folder: Path, system: SystemDescription) -> Path:
    """What the checkers look at."""
    return folder / path_name(system.submitter)


def _write_code(folder: Path, statement: Mapping[str, Any], code: Code) -> None:
    folder.mkdir(parents=True)
    for distribution, files in code.items():
        for name, source in files:
            target = folder / distribution / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    missing = [name for name in statement["distributions"] if name not in code]
    (folder / "README.md").write_text(words.implementation_readme(statement, missing), "utf-8")


def _write_runs(folder: Path, runs: Sequence[Candidate], system: SystemDescription, rules: Rules) -> None:
    first = runs[0]
    (folder / "provenance").mkdir(parents=True)
    kept = {}
    for number, run in enumerate(runs):
        for name, statement in run.provenance.items():
            kept[f"result_{number}-{name.replace('/', '-')}"] = statement
    for name, statement in kept.items():
        _write_json(folder / "provenance" / name, statement)
    _write_json(folder / "profile.json", first.settings)
    _write_json(folder / f"{system.id}_{IMPLEMENTATION}.json", {
        "implementation": IMPLEMENTATION, "system": system.id, "benchmark": rules.benchmark, "ruleset": rules.name,
        "checker": f"mlperf-logging {rules.checker}", "division": system.division, "profile": first.started["profile"],
        "source_commits": revisions(first.statement), "container": first.statement.get("container"),
        "locks": {role: lock["lock_sha256"] for role, lock in first.statement.get("locks", {}).items()},
        "policy": first.statement["policy"], "tasks": first.statement["tasks"],
        "runs": [{"result": f"result_{number}.txt", "run": run.run, "seed": run.started["seed"]}
                 for number, run in enumerate(runs)],
    })
    (folder / "README.md").write_text(words.readme(runs, system.id, rules), "utf-8")
    for name, text in (("setup.sh", words.setup(first.statement)), ("init_datasets.sh", words.init_datasets()),
                       ("run_and_time.sh", words.run_and_time(first, system.division))):
        (folder / name).write_text(text, "utf-8")
        (folder / name).chmod(0o755)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
