"""Applying an agent's patch to a fresh copy, by git and inside the sandbox.

git alone reads the patch: it says which files there are, and leaves out those that this module names, so no second
reading of the same text can be talked into another opinion. It refuses paths outside of the working folder, behind a
symbolic link or in .git, and applies all or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from grpo_bench.contract import Sandbox

TESTS = re.compile(r"(?s)r2e_tests(/.*)?")
"""Never the patch's to change; where the tests lie, the copy gets them from elsewhere."""
CONTROL = re.compile(
    r"(?s)(.*/)?(conftest\.py|\.?pytest\.(ini|toml)|tox\.ini|setup\.cfg|(site|user)customize(\.py|/.*)|[^/]*\.pth"
    r"|[^/]*\.(egg|dist)-info(/.*)?|EGG-INFO/.*|[^/]*\.egg-link)"
    r"|((src|lib)/)?(_?pytest|pluggy|iniconfig)(\.py|/.*)|(r2e_tests|\.venv|\.grading)(/.*)?|run_tests\.sh")
"""Files that steer a test run rather than being tested by it."""
_WILD = re.compile(r"[*?\[\\]")
_MOST_LEFT_OUT = 1000


@dataclass(frozen=True, slots=True)
class Applied:
    """``problem`` says why the patch does not apply; empty: it did, without the files in ``left_out``."""

    problem: str = ""
    left_out: tuple[str, ...] = ()


async def apply(sandbox: Sandbox, patch: str, *, exact: bool, timeout_s: float) -> Applied:
    """Apply a patch in the sandbox's working folder; ``exact`` as R2E-Gym does it."""
    if not patch.strip():
        return Applied()
    try:
        patch.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return Applied("it is no text")
    rule: Callable[[str], object] = (TESTS if exact else CONTROL).fullmatch
    listed = await sandbox.exec(["git", "apply", "--numstat", "-z", "-"], timeout_s=timeout_s, stdin=patch)
    if listed.exit_code:
        return Applied(_said(listed.stderr))
    paths = [entry.split("\t", 2)[-1] for entry in listed.stdout.split("\0") if entry]
    left_out = tuple(path for path in paths if rule(path))
    if unclear := next((path for path in left_out if "\ufffd" in path), None):
        return Applied(f"{unclear} is no name to leave out")
    if len(left_out) > _MOST_LEFT_OUT:
        return Applied(f"it changes {len(left_out)} files that steer the tests")
    argv = ["git", "apply", f"--whitespace={'fix' if exact else 'nowarn'}",
            *("--exclude=" + _WILD.sub(r"\\\g<0>", path) for path in left_out), "-"]
    done = await sandbox.exec(argv, timeout_s=timeout_s, stdin=patch)
    return Applied(_said(done.stderr) if done.exit_code else "", left_out)


def _said(text: str) -> str:
    lines = text.strip().splitlines()
    return (lines[-1] if lines else "git gave up").removeprefix("error: ")[:300]
