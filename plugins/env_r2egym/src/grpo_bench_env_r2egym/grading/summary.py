"""R2E-Gym's rule: what a test run said, and whether that is what was expected.

The log is that of ``pytest -rA``, and what counts is the text after the first "short test summary info" up to the next
one. Each of its lines that contains PASSED, else FAILED, else ERROR gives the test after the first ``::`` (further ones
become dots) that status; of lines for the same test the last counts. Names are cut at " - ". A run is right where it
gives as many tests as expected, each with the status expected. The oddities are the original's and are kept, since
rewards must be those of the original: a line of a failure whose message contains PASSED counts as passed, tests of the
same name in two files are one, skipped ones are none, a summary printed by the code under test counts where it comes
first, and lines without a name count together as one test whose status does not matter. Two things differ: nothing
expected is no task, where the original would say 1 for any run that gives no summary, and a run with other names is
wrong, where the original may raise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MARK = "short test summary info"
STATUSES = ("PASSED", "FAILED", "ERROR")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\r")
_KEY_COLOURS = re.compile(r"\x1b\[\d+m")


def results(log: str) -> dict[str, str]:
    """Status by name of test, names as the original compares them."""
    parts = _COLOURS.sub("", log).split(MARK)
    return of_lines(parts[1].strip().split("\n")) if len(parts) > 1 else {}


def of_lines(lines: Iterable[str]) -> dict[str, str]:
    """The same from the lines of a summary."""
    found: dict[str, str] = {}
    for line in lines:
        status = next((status for status in STATUSES if status in line), None)
        if status is None:
            continue
        name = ".".join(line.split("::")[1:])
        found[name if status == "PASSED" else _cut(name)] = status
    return comparable(found)


def comparable(statuses: Mapping[str, str]) -> dict[str, str]:
    """Names without colours, cut at " - "; where that makes names equal, the last in the order of names counts."""
    plain = {_KEY_COLOURS.sub("", name): status for name, status in statuses.items()}
    return {_cut(name): plain[name] for name in sorted(plain)}


def agree(found: Mapping[str, str], expected: Mapping[str, str]) -> bool:
    """Whether a run is right; both sides as :func:`comparable` gives them. ValueError where nothing is expected."""
    if not expected:
        raise ValueError("nothing is expected, so nothing can be wrong")
    return len(found) == len(expected) and all(
        not name or expected.get(name) == status for name, status in found.items())


def differences(found: Mapping[str, str], expected: Mapping[str, str], most: int = 3) -> str:
    """What is not as expected, for people."""
    names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
    parts = [f"{name or '(no name)'} {found.get(name, 'missing')} instead of {expected.get(name, 'nothing')}"
             for name in names[:most]]
    return "; ".join(parts) + (f"; and {len(names) - most} more" if len(names) > most else "")


def _cut(name: str) -> str:
    return name.split(" - ")[0]
