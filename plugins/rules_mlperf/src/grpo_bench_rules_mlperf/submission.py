"""A submission, judged as a whole: the folder of an organisation, with ``systems/SYSTEM.json`` and
``results/SYSTEM/BENCHMARK/result_N.txt``.

Each log of this benchmark is judged by itself; the logs of a system must be three, as the system's description has it
and at one batch, and in the closed division with seeds of their own and no faster than the reference. The official
package checker goes over all of it, other benchmarks included, on a copy, since it may write beside the logs. Files
that tell it to let something pass have no effect on the other checks.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from grpo_bench.contract import Finding, InputError

from .judged import NEWEST, RUNS, Log, judge_file, minutes, read_log, unasked
from .official import PACKAGE, judge_convergence, judge_package, missing
from .reading import is_open, seconds_of, value_of
from .system import STATUS, described, read_values

RESULTS, SYSTEMS = "results", "systems"


def is_tree(path: Path) -> bool:
    """Whether ``path`` looks like a submission."""
    return all((path / name).is_dir() for name in (RESULTS, SYSTEMS))


def judge_tree(organisation: Path) -> tuple[Finding, ...]:
    """The findings on a submission, those that are about one system or log named after it."""
    folders = sorted(path for path in (organisation / RESULTS).glob(f"*/{NEWEST.benchmark}") if path.is_dir())
    if not folders:
        return (Finding(NEWEST.benchmark, False, f"{organisation / RESULTS} holds no SYSTEM/{NEWEST.benchmark}"),)
    found = [finding for folder in folders for finding in _system(organisation, folder)]
    return (*found, _package(organisation))


def _system(organisation: Path, folder: Path) -> Iterator[Finding]:
    """What is said about one system's runs."""
    system = folder.parent.name
    logs = [read_log(file) for file in sorted(folder.glob("result_*.txt")) if file.is_file()]
    for finding in (_count(folder), _described(organisation, system, logs), *_logs(logs), *_together(logs)):
        yield Finding(f"{system} {finding.rule}", finding.ok, finding.message, fix=finding.fix, unknown=finding.unknown)


def _count(folder: Path) -> Finding:
    wanted = {f"result_{number}.txt" for number in range(RUNS)}
    names = {path.name for path in folder.iterdir()}
    wrong = [f"{words} {', '.join(sorted(found))}" for words, found in (
        ("is missing", wanted - names), ("does not belong there:", names - wanted)) if found]
    return Finding("runs", not wrong, f"{RUNS}, one log each" if not wrong else "; ".join(wrong))


def _described(organisation: Path, system: str, logs: Sequence[Log]) -> Finding:
    """Whether the system is described, and as the logs have it."""
    file = organisation / SYSTEMS / f"{system}.json"
    try:
        description = described(read_values(file), file)
    except InputError as error:
        return Finding("description", False, error.message, fix=error.hint)
    said = {"submission_division": description.division, "submission_org": description.submitter,
            "submission_platform": description.system_name,
            "submission_status": next(name for name, words in STATUS.items() if words == description.status)}
    wrong = sorted({f"{log.file.name} has {key} {found!r}, the description {value!r}"
                    for log in logs for key, value in said.items()
                    if (found := value_of(log.lines, key)) != value and (key, found) != ("submission_status", None)})
    return Finding("description", not wrong, "; ".join(wrong) or f"{file.name} has every field, and what the logs say")


def _logs(logs: Sequence[Log]) -> Iterator[Finding]:
    """Each log by itself: what speaks against it, or that nothing does."""
    for log in logs:
        findings = list(judge_file(log))
        bad = [finding for finding in findings if not finding.ok]
        for finding in bad:
            yield Finding(f"{log.file.name} {finding.rule}", False, finding.message, fix=finding.fix,
                          unknown=finding.unknown)
        if not bad:
            yield Finding(log.file.name, True, "; ".join(finding.message for finding in findings))


def _together(logs: Sequence[Log]) -> Iterator[Finding]:
    """What only all runs of a system show."""
    for key in ("global_batch_size", "submission_division"):
        values = {repr(value_of(log.lines, key)) for log in logs}
        if len(values) != 1:
            yield Finding(key, False, f"should be the same in all runs, is {', '.join(sorted(values)) or 'not said'}")
    if not any(is_open(log.lines) for log in logs):
        yield _seeds(logs)
        yield _converged(logs)
    scores = [seconds for log in logs if (seconds := seconds_of(log.lines)) is not None]
    if len(scores) == RUNS:
        yield Finding("score", True, f"{minutes(median(scores))}, the median of "
                                     f"{', '.join(map(minutes, sorted(scores)))}")


def _seeds(logs: Sequence[Log]) -> Finding:
    seeds: list[Any] = [value_of(log.lines, "seed") for log in logs]
    twice = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
    return Finding("seeds", not twice, f"all different: {', '.join(map(str, seeds))}" if not twice else
                   f"{', '.join(twice)} is that of several runs; each run has its own")


def _converged(logs: Sequence[Log]) -> Finding:
    name = "official RCP checker"
    if why := missing(NEWEST):
        return unasked(name, why)
    found = judge_convergence([log.file for log in logs], NEWEST)
    says = "passes" if found.passed else "refuses"
    return Finding(name, found.passed, f"{PACKAGE} {NEWEST.checker} {says} the runs: {found.words}")


def _package(organisation: Path) -> Finding:
    name = "official package checker"
    if why := missing(NEWEST):
        return unasked(name, why)
    with TemporaryDirectory() as place:
        copy = Path(place) / re.sub(r"[^\w.-]", "_", organisation.resolve().name)
        for part in (RESULTS, SYSTEMS):
            shutil.copytree(organisation / part, copy / part)
        errors = judge_package(copy, NEWEST)
    return Finding(name, not errors, f"{PACKAGE} {NEWEST.checker} finds no errors" if not errors else
                   f"{PACKAGE} {NEWEST.checker} refuses it: {'; '.join(errors)}")

