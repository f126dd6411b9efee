"""Three runs that are to be one submission, and everything that speaks against it.

A *candidate* is a run with the verdict on it, what it was made of, and its log. :func:`refusals` names every reason at
once: a run that is no result, runs that differ in more than their seed, a system description that is not that of the
logs. None of them can be overridden. Nothing here writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_bench.contract import Event, Finding, RunFolderError, divided, settings_of

from .form import Line
from .judged import RUNS
from .reading import read, value_of
from .rules import Rules
from .system import STATUS, SystemDescription

IMPLEMENTATION = "grpo-bench"
"""What the implementation is called in the tree."""
LOG = "mllog.txt"
_SOFTWARE = ("python", "distributions", "libraries", "policy", "tasks", "container")
"""What of the provenance has to be the same in all runs, beside the environments of workers."""
_RELEASED = ("index", "archive")
"""How code comes that its version, or the hash of its file, tells."""
_SHOWN = 8


@dataclass(frozen=True)
class Candidate:
    """``findings`` are those of the verdict on the run, with who said so. ``provenance`` maps the name of a file in the
    run folder to the statement in it; the run's first is ``provenance.json``. ``lines`` are those of the log, none
    where it is damaged, which the verdict says."""

    folder: Path
    run: str
    findings: Sequence[tuple[str, Finding]]
    events: Sequence[Event]
    provenance: Mapping[str, Mapping[str, Any]]
    log: str
    lines: Sequence[Line]

    @property
    def started(self) -> Mapping[str, Any]:
        """The data of the run's first event."""
        return self.events[0].data

    @property
    def settings(self) -> Mapping[str, Any]:
        """The resolved profile of the training, without what is the run's own."""
        return {key: value for key, value in settings_of(divided(self.events)[0]).items() if key != "seed"}

    @property
    def statement(self) -> Mapping[str, Any]:
        return self.provenance["provenance.json"]


def candidate(folder: Path, run: str, findings: Sequence[tuple[str, Finding]], events: Sequence[Event]) -> Candidate:
    """The candidate in a run folder that was judged; RunFolderError where it is a simulation, or lacks a file that it
    has to have."""
    if events and events[0].data.get("modelled"):
        raise RunFolderError(f"{folder} cannot be packaged: it is a simulation")
    files = sorted(folder.glob("provenance*.json")) + sorted(folder.glob("eval/provenance*.json"))
    try:
        found = {file.relative_to(folder).as_posix(): json.loads(file.read_text("utf-8")) for file in files}
        log = (folder / LOG).read_text("utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder} cannot be packaged: {error}", hint="restore the file from a copy") from None
    if not isinstance(found.get("provenance.json"), dict):
        raise RunFolderError(f"{folder} cannot be packaged: it does not say what it was made of (provenance.json)")
    try:
        lines = read(log)
    except ValueError:
        lines = []
    return Candidate(folder, run, findings, events, found, log, lines)


def refusals(runs: Sequence[Candidate], system: SystemDescription, rules: Rules) -> list[str]:
    """Every reason why these runs are no submission; empty where they are one."""
    return [*_of_each(runs, rules), *_of_all(runs), *_of_system(runs, system), *_of_batches(runs, rules)]


def revisions(statement: Mapping[str, Any]) -> list[str]:
    """The commits that the code is of, as far as the statement knows: of source trees, of installs from version
    control, of the image."""
    trees = [state["commit"] for state in statement["sources"].values()]
    installs = [origin.get("commit") for origin in statement.get("installs", {}).values()]
    image = (statement.get("container") or {}).get("image") or {}
    return sorted({commit for commit in (*trees, *installs, image.get("revision")) if commit})


def _of_each(runs: Sequence[Candidate], rules: Rules) -> Iterator[str]:
    for run in runs:
        for by, finding in run.findings:
            if not finding.ok:
                yield f"{run.run}: not a result: {by}: {finding.rule}: {finding.message}"
        if run.started["scored"] is not True and not run.started["unscored"]:
            yield f"{run.run}: not scored"
        ruleset = (run.settings.get("ruleset") or {}).get("use")
        if ruleset != rules.name:
            yield f"{run.run}: made under {f'ruleset {ruleset}' if ruleset else 'no ruleset'}, not {rules.name}"
        observers = run.settings.get("observers") or []
        if not any(section.get("use") == "mllog" for section in observers):
            yield f"{run.run}: its log is vouched for by nobody: it ran without the observer mllog"
        installs = run.statement.get("installs", {})
        if not revisions(run.statement) and not all(found["kind"] in _RELEASED for found in installs.values()):
            yield f"{run.run}: its provenance names no commit of its code: neither a source tree nor the image does"


def _of_all(runs: Sequence[Candidate]) -> Iterator[str]:
    if len(runs) != RUNS:
        yield f"{len(runs)} run{'' if len(runs) == 1 else 's'} where a submission has exactly {RUNS}"
    for key, alike in (("seed", "have the same seed"), ("run", "are the same run")):
        seen: dict[Any, str] = {}
        for run in runs:
            value = run.started[key]
            if value in seen:
                yield f"{run.folder} and {seen[value]} {alike}, {value}"
            seen.setdefault(value, str(run.folder))
    for run in runs[1:]:
        first = runs[0]
        if run.started["profile"] != first.started["profile"]:
            yield f"{run.run}: profile {run.started['profile']}, {first.run} has {first.started['profile']}"
        for what, mine, its in (("settings", run.settings, first.settings),
                                ("software", _software(run.statement), _software(first.statement))):
            found = list(_differences(mine, its))
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            if found:
                yield f"{run.run}: other {what} than {first.run}: {'; '.join(found[:_SHOWN])}{more}"


def _of_system(runs: Sequence[Candidate], system: SystemDescription) -> Iterator[str]:
    if system.id == IMPLEMENTATION:
        yield f"system_name: {system.system_name!r} is what the implementation is called; give it another name"
    status = {official: word for word, official in STATUS.items()}[system.status]
    wanted = {"submission_org": ("submitter", system.submitter), "submission_platform": ("system_name",
              system.system_name), "submission_division": ("division", system.division),
              "submission_status": ("status", status)}
    for run in runs:
        for key, (field, value) in wanted.items():
            said = value_of(run.lines, key)
            if said != value and not (key == "submission_status" and said is None):
                yield f"{run.run}: {key} is {said!r} in its log, and the system description says {field} {value!r}"
        nodes = {node for placement in run.started["placements"].values() for node in placement.get("nodes", ())}
        if nodes and len(nodes) != int(system.number_of_nodes):
            yield (f"{run.run}: it ran on {len(nodes)} nodes, and the system description says number_of_nodes "
                   f"{system.number_of_nodes}")


def _of_batches(runs: Sequence[Candidate], rules: Rules) -> Iterator[str]:
    started = [run.started for run in runs if (run.settings.get("ruleset") or {}).get("division") != "open"]
    for batch in sorted({data["prompts_per_step"] * data["generations_per_prompt"] for data in started}):
        if rules.samples_to_converge(batch) is None:
            yield (f"batch {batch}: no submission in the closed division can pass yet: checker {rules.checker} knows "
                   f"no run of the reference above batch {max(rules.reference_samples)}")


def _software(statement: Mapping[str, Any]) -> dict[str, Any]:
    """Of environments what they hold, not where they are."""
    locks = {role: {key: lock[key] for key in ("lock_sha256", "libraries")}
             for role, lock in statement.get("locks", {}).items()}
    return {**{key: statement.get(key) for key in _SOFTWARE}, "locks": locks}


def _differences(mine: Any, its: Any, path: str = "") -> Iterator[str]:
    if isinstance(mine, Mapping) and isinstance(its, Mapping):
        for key in sorted({*mine, *its}):
            yield from _differences(mine.get(key), its.get(key), f"{path}.{key}" if path else key)
    elif mine != its:
        yield f"{path} is {_short(mine)}, not {_short(its)}"


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
