"""The order of a preflight: the machine, the software, manifests, then each part for itself; and what the plan misses.

Whoever speaks is named: ``plan``, ``machine``, ``software``, ``artifacts``, or a part by role and name. Nothing is
started and nothing but a cache of hashes is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..contract import FileDigests, Finding, Placement, PreflightContext, Role, load_object
from ..registry import Part, Plan
from ..registry.parts import called, site_of
from ..registry.references import references
from . import machine, manifests, software
from .asking import SILENT_S, Question, ask
from .digests import Say
from .digests_cache import DigestCache

Judged = tuple[str, Finding]
"""Who says so, and what."""
_ADVISED = re.compile(r"(site: \S+ \(.*\)): (.+)|(.*) \(([^()]+)\)", re.DOTALL)
"""What a line says to do: behind what a site file should have, else in parentheses at its end."""
_UNJUDGED = ("not judged: ", "judged in part: ")


def preflight(plan: Plan, runs: Path, say: Say, *, artifacts: Iterable[Path] = (), cache: DigestCache | None = None,
              silent_s: float = SILENT_S) -> list[Judged]:
    """Everything that is found out about this machine before ``plan`` runs in a folder below ``runs``. ``artifacts``
    are further files and folders whose manifests count; ``cache`` None: every file is read."""
    facts = {role.value: dict(part.facts) for role, part in plan.parts.items()}
    facts[Role.HARDWARE.value] = {**plan.hardware, **facts[Role.HARDWARE.value]}
    folders, parts = [plan.checkpoint.checkpoint, *artifacts], (*plan.parts.values(), *plan.observers)
    questions: list[tuple[str, Question]] = [
        ("machine", lambda digests, tell: machine.findings(plan, facts, runs)),
        ("software", lambda digests, tell: software.findings(plan)),
        ("artifacts", lambda digests, tell: manifests.findings(folders, digests)),
        *((_name(part), _question(plan, part, facts, runs)) for part in parts if part.descriptor.preflight)]
    found: list[Judged] = []
    for by, question in questions:
        say(f"{by}: looking")
        found += [(by, finding) for finding in ask(question, say, cache, silent_s)]
    unset = {f"site:{key}" for _, key in references(plan.resolved)}
    found = [(by, finding) for by, finding in found if finding.ok or unset.isdisjoint(finding.message.split())]
    speakers = ["plan", "machine", "software", "artifacts", *map(_name, parts)]
    return sorted([*_rules(plan), *_missing(plan, unset, found), *found], key=lambda item: speakers.index(item[0]))


def _missing(plan: Plan, unset: set[str], found: Iterable[Judged]) -> Iterator[Judged]:
    """What the plan misses, by whom it was missed. What a part has ``found`` itself, with reasons, is not repeated, nor
    what follows from values of the site file that are ``unset``: those are missing themselves."""
    said = {(by, text) for by, item in found for text in (item.message, f"{item.rule}: {item.message}")}
    names = {called(part): _name(part) for part in plan.parts.values()}
    for line in plan.missing:
        kind = next((kind for kind in _UNJUDGED if line.startswith(kind)), "")
        of = next((name for name in names if line.removeprefix(kind).startswith((f"{name}:", f"{name},"))), "")
        by, message = names.get(of, "plan"), line.removeprefix(kind).removeprefix(of).removeprefix(": ")
        advised = _ADVISED.fullmatch(message)
        message, fix = filter(None, advised.groups()) if advised else (message, "")
        if kind:
            yield by, Finding(kind.removesuffix(": "), False, message.removeprefix(", "), unknown=True, fix=fix)
        elif (by, message) not in said and (not of or unset.isdisjoint(message.split())):
            yield by, Finding("missing", False, message, why="without it no run starts", fix=fix)


def _rules(plan: Plan) -> Iterator[Judged]:
    """Whether the rules are kept, in one line each: a plan says all of it."""
    count, fix = len(plan.findings), "grpo-bench plan says why, rule by rule"
    for unknown in (False, True):
        found = [finding.rule for finding in plan.findings if not finding.ok and finding.unknown is unknown]
        how = "cannot be judged here" if unknown else "are broken"
        if found:
            yield "plan", Finding("rules", False, f"{len(found)} of {count} {how}: {', '.join(found)}", fix=fix,
                                  why="a run outside its rules is no result", unknown=unknown)
    if count and all(finding.ok for finding in plan.findings):
        yield "plan", Finding("rules", True, f"all {count} hold")


def _question(plan: Plan, part: Part, facts: Mapping[str, Any], runs: Path) -> Question:
    placement = plan.placements.get(part.role.value, Placement())
    site = site_of(part, plan.checkpoint, placement, plan.hardware, plan.profile)

    def question(digests: FileDigests, say: Say) -> Iterable[Finding]:
        context = PreflightContext(site=site, settings=plan.resolved, facts=facts, provenance=plan.provenance,
                                   runs=runs, digests=digests, say=say)
        return load_object(part.descriptor.preflight or "")(part.config, context)

    return question


def _name(part: Part) -> str:
    return f"{part.role.value} {part.name}"
