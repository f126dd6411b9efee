"""Logs and submissions that anybody wrote, held against the rules: what ``check`` asks this ruleset about a path.

A log is judged by the official checker and by our audit. One that has the shape of an older version of the rules, and
is sound but for that, gets one finding which says so in place of the official checker's list. Submissions are judged in
``submission``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_bench.contract import Finding

from .audit import audit
from .convergence import outcome
from .form import Line
from .official import PACKAGE, Verdict, judge_convergence, judge_log, missing
from .reading import batch_of, is_open, is_success, log_in, read, sample_counts, seconds_of, value_of, values_of
from .rules import Rules
from .versions import VERSIONS

NEWEST = VERSIONS[0]
RUNS = 3
"""How many runs make a result, whose score is their median."""


@dataclass(frozen=True)
class Log:
    """A file's lines of MLLOG: as text, and parsed, which is empty where one of them is none."""

    file: Path
    text: str
    lines: Sequence[Line]


def judge_path(path: Path) -> tuple[Finding, ...] | None:
    """The findings on a log or a submission; None for anything else."""
    from .submission import is_tree, judge_tree
    if is_tree(path):
        return judge_tree(path)
    log = read_log(path) if path.is_file() else None
    return None if log is None or not log.text else (*judge_file(log), *prospects(log))


def read_log(file: Path) -> Log:
    text = log_in(file)
    try:
        return Log(file, text, read(text))
    except ValueError:
        return Log(file, text, ())


def judge_file(log: Log) -> Iterator[Finding]:
    """Whether one log is that of a result."""
    found = value_of(log.lines, "submission_benchmark")
    if log.lines and found != NEWEST.benchmark:
        yield Finding("benchmark", False, f"is {found!r}; these rules are those of {NEWEST.benchmark}")
        return
    why = missing(NEWEST)
    verdict = None if why else judge_log(log.file, NEWEST)
    older = _older(log, verdict)
    yield official_finding(verdict, why) if older is None else _outdated(log, older)
    faults = audit(log.text, strict=older or NEWEST)
    yield from faults or (Finding("audit", True, "what the official checker does not look at holds"),)
    for line in log.lines:
        if line.key == "scored" and line.value is not True:
            reasons = line.metadata.get("reasons")
            words = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
            yield Finding("scored", False, words or "the log says that its run was not")


def prospects(log: Log) -> Iterator[Finding]:
    """What a log that can be read comes to: its score, and what the check of convergence will make of its run. A single
    run cannot be refused for that."""
    if (seconds := seconds_of(log.lines)) is not None:
        yield Finding("score", True, f"{minutes(seconds)} from run_start to run_stop")
    batch, counts = batch_of(log.lines), sample_counts(log.lines)
    if is_open(log.lines) or not is_success(log.lines) or batch is None or not counts or type(counts[-1]) is not int:
        return
    yield outcome(NEWEST, batch, counts[-1] // batch)
    if not missing(NEWEST):
        found = judge_convergence([log.file] * RUNS, NEWEST)
        says = "passes" if found.passed else "refuses"
        yield Finding("official RCP checker", True, f"{PACKAGE} {NEWEST.checker} {says} three runs like this one: "
                                                    f"{found.words}")


def official_finding(verdict: Verdict | None, why: str) -> Finding:
    """What the compliance checker says, or ``why`` it could not be asked, as a finding that allows it no refusal."""
    name, asked = "official checker", f"{PACKAGE} {NEWEST.checker} with warnings as errors"
    if verdict is None:
        return unasked(name, why)
    if verdict.passed:
        return Finding(name, True, f"{asked} passes it")
    reasons = [*(f"{key}: {why}" for key, why in sorted(verdict.refused.items())), *verdict.other]
    return Finding(name, False, f"{asked} refuses it: {'; '.join(reasons)}")


def unasked(name: str, why: str) -> Finding:
    return Finding(name, False, f"not asked: {why}", unknown=True, fix=f"pip install {PACKAGE}=={NEWEST.checker}")


def minutes(seconds: float) -> str:
    return f"{seconds:.3f} s ({seconds / 60:.3f} min)"


def _older(log: Log, verdict: Verdict | None) -> Rules | None:
    """The older version that the log has the shape of, where nothing else speaks against it."""
    tasks = value_of(log.lines, "eval_samples")
    for rules in VERSIONS[1:]:
        optional = NEWEST.logged - rules.logged
        sound = verdict is None or (not verdict.other and verdict.refused.keys() <= {"eval_samples", *optional})
        if sound and tasks == rules.validation_tasks != NEWEST.validation_tasks and not any(
                values_of(log.lines, key) for key in (verdict.refused if verdict else ()) if key in optional):
            return rules
    return None


def _outdated(log: Log, rules: Rules) -> Finding:
    absent = sorted(key for key in NEWEST.logged - rules.logged if not values_of(log.lines, key))
    return Finding("rules", False, f"has the shape of {rules.name} (checker {rules.checker}) and would pass there, not "
                                   f"of {NEWEST.name} (checker {NEWEST.checker}): {rules.validation_tasks} validation "
                                   f"tasks instead of {NEWEST.validation_tasks}"
                                   + (f", and nothing about {', '.join(absent)}" if absent else ""))
