"""The verb ``sandbox check``: which isolation this machine can give, and each of its limits tried by breaking it.

What counts is what a backend claims. A limit it does not claim here, for example because control groups are not
permitted, is shown as such; a limit it claims and does not hold makes the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from .backends import Backend, BackendName, available, backend
from .check_trials import LIMITS, Trial, trials
from .spec import Image, SandboxSpec

_AT_ONCE = 4
ALWAYS = {"open files": "rlimit", "output": "what is beyond is dropped"}
"""What every backend does alike."""


@dataclass(frozen=True)
class Finding:
    """Of one trial. ``by``: what holds it, or what went wrong."""

    name: str
    tried: str
    verdict: Literal["held", "not held", "not claimed"]
    by: str


def fill(parser: Any) -> None:
    """The arguments of ``grpo-bench sandbox``."""
    verbs = parser.add_subparsers(dest="sandbox_verb", required=True, metavar="check")
    check = verbs.add_parser("check", help="show which isolation this machine can give, and try to break each limit")
    check.add_argument("--backend", choices=("auto", *available()), default="auto",
                       help="which one is tried; auto: the best that can be used here")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(verb=run)


def run(arguments: argparse.Namespace) -> int:
    found = available()
    chosen = arguments.backend
    if chosen == "auto":
        chosen = next((name for name, reason in found.items() if reason is None and name != "process"), None)
    findings = [] if chosen is None or found[chosen] else asyncio.run(_try_all(backend(cast(BackendName, chosen))))
    ok = bool(findings) and all(finding.verdict != "not held" for finding in findings)
    if arguments.json:
        print(json.dumps({"backends": found, "backend": chosen, "ok": ok,
                          "trials": [asdict(finding) for finding in findings]}))
    else:
        print("\n".join(_lines(found, chosen, findings)))
    return 0 if ok else 1


async def _try_all(chosen: Backend) -> list[Finding]:
    if chosen.name == "apptainer":
        return []
    facts = chosen.facts(LIMITS)
    gate = asyncio.Semaphore(_AT_ONCE)
    with tempfile.TemporaryDirectory(prefix="grpo-bench-check-") as folder:
        spec, python = await asyncio.to_thread(_spec, Path(folder))

        async def one(trial: Trial) -> Finding:
            async with gate:
                sandbox = await chosen.open(spec, LIMITS)
                try:
                    escaped = await trial.escapes(sandbox, python)
                finally:
                    await sandbox.close()
            return _judged(trial, escaped, _claim(trial, chosen, facts))

        async with trials() as all_trials:
            return list(await asyncio.gather(*(one(trial) for trial in all_trials)))


def _claim(trial: Trial, chosen: Backend, facts: Mapping[str, Any]) -> str:
    """What is said to hold it; empty: nothing is said to."""
    if not trial.limit:
        return "" if chosen.name == "process" else chosen.name
    said = facts["limits"].get(trial.limit, ALWAYS.get(trial.limit, ""))
    return "" if said.startswith(("nothing", "address space")) else said


def _judged(trial: Trial, escaped: str | None, claim: str) -> Finding:
    if not claim:
        return Finding(trial.name, trial.tried, "not claimed", escaped or "held, as it happens")
    return Finding(trial.name, trial.tried, "not held" if escaped else "held", escaped or claim)


def _spec(folder: Path) -> tuple[SandboxSpec, str]:
    """A sandbox of nothing but this interpreter and an empty repository; and the interpreter."""
    git = ["git", "-C", str(folder), "-c", "user.name=check", "-c", "user.email=check@localhost"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "check"]):
        subprocess.run([*git, *command], check=True, stdin=subprocess.DEVNULL, capture_output=True,
                       env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder)})
    base = os.path.realpath(sys.base_prefix)
    binds = {} if base == "/usr" else {base: base}
    python = f"{base}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    return SandboxSpec(Image("host", binds=binds), source=folder), python


def _lines(found: Mapping[str, str | None], chosen: str | None, findings: list[Finding]) -> list[str]:
    lines = [f"{name:<11}{_usable(name, reason)}" for name, reason in found.items()]
    if chosen is None:
        return [*lines, "", "No backend that isolates can be used here."]
    if found[chosen]:
        return [*lines, "", f"{chosen} cannot be used here."]
    if not findings:
        return [*lines, "", f"{chosen} runs SIF images only, so its limits are not tried here."]
    broken = sum(finding.verdict == "not held" for finding in findings)
    lines += ["", f"{chosen}, each limit tried:"]
    for finding in findings:
        verdict = {"held": f"held by {finding.by}", "not held": f"NOT HELD: {finding.by}",
                   "not claimed": f"not available here: {finding.by}"}[finding.verdict]
        lines.append(f"  {finding.name:<15}{finding.tried:<56}{verdict}")
    return [*lines, "", f"{broken} of the limits it claims do not hold." if broken else "All it claims holds."]


def _usable(name: str, reason: str | None) -> str:
    if reason is not None:
        return f"cannot be used: {reason}"
    return "can be used, and isolates nothing" if name == "process" else "can be used"
