"""``preflight``: look whether this machine has what a run needs, and whether that is what it should be.

Starts nothing. Exit codes: 0 all is well, 1 something is not or cannot be told here, 2 the profile is wrong.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .columns import page_width, say, wrapped
from .options import Verbs, add_profile_options, surveyed_by

if TYPE_CHECKING:
    from ..contract import Finding
    from ..preflight import Judged
    from ..registry import Resolved


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("preflight", help="check this machine, its data and its software before a run",
                              description=__doc__)
    add_profile_options(parser)
    parser.add_argument("--runs", type=Path, default=Path("runs"), metavar="DIR",
                        help="where run folders will go (default: runs)")
    parser.add_argument("--no-cache", action="store_true", help="hash every file, whether or not its hash is known")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.set_defaults(verb=_preflight)


def _preflight(arguments: argparse.Namespace) -> int:
    from ..preflight import DigestCache, Progress, default_file, preflight
    progress = Progress(page_width())
    cache = None if arguments.no_cache else DigestCache(default_file())
    try:
        progress.say("making the plan")
        resolved, plan = surveyed_by(arguments)
        judged = preflight(plan, arguments.runs, progress.say, artifacts=_artifacts(resolved), cache=cache)
    finally:
        progress.clear()
    ok = all(finding.ok for _, finding in judged)
    origins = {item.key: str(item.origin) for item in plan.explained}
    if arguments.json:
        print(json.dumps({"profile": plan.name, "ok": ok, "findings": [
            {"by": by, **asdict(finding), "origin": origins.get(finding.key, "")} for by, finding in judged]}))
    else:
        say(*_lines(judged, origins, page_width()))
    return 0 if ok else 1


def _artifacts(resolved: Resolved) -> list[Path]:
    """The paths that the site file gives."""
    given = resolved.site.artifacts.model_dump(exclude={"sources"}) if resolved.site else {}
    return [Path(path) for path in given.values() if path]


def _lines(judged: Sequence[Judged], origins: Mapping[str, str], room: int) -> Iterator[str]:
    """By who says it, what holds first; then how many of each there are."""
    for speaker in dict.fromkeys(by for by, _ in judged):
        yield speaker
        reasons: set[str] = set()
        for finding in sorted((finding for by, finding in judged if by == speaker), key=_gravity):
            yield from _finding(finding, origins, room, said=finding.why in reasons)
            reasons.add(finding.why)
        yield ""
    counts = [sum(_gravity(finding) == grade for _, finding in judged) for grade in range(3)]
    yield f"{counts[0]} ok, {counts[1]} unknown, {counts[2]} failed"


def _gravity(finding: Finding) -> int:
    return 0 if finding.ok else 1 if finding.unknown else 2


def _finding(finding: Finding, origins: Mapping[str, str], room: int, *, said: bool) -> Iterator[str]:
    """One finding; a reason that was ``said`` is not repeated."""
    mark = ("ok  ", "?   ", "FAIL")[_gravity(finding)]
    yield from wrapped(f"  {mark} {finding.rule}: {finding.message}", room, 7)
    if finding.ok:
        return
    where = f"{finding.key}, {origins[finding.key]}" if finding.key in origins else ""
    for label, text in (("why", "" if said else finding.why), ("fix", finding.fix), ("set", where)):
        if text:
            yield from wrapped(f"       {label}: {text}", room, 12)
