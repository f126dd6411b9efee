"""What the recorder beside the tests said, read back; see :mod:`..inside.run`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import summary


@dataclass(frozen=True)
class Records:
    """``results`` as :func:`summary.results` would give them. ``code`` is pytest's exit code, None where it never came
    to its end. ``faults`` say what an honest run does not do."""

    results: dict[str, str]
    passing: str | None
    failing: str | None
    code: int | None
    faults: tuple[str, ...]


def read(channel: str, word: str) -> Records:
    """All records of a run. What stands before the first is the interpreter's; after it every line must be one."""
    faults: list[str] = []
    lines: dict[str, list[str]] = {status: [] for status in ("PASSED", "ERROR", "FAILED")}
    planted: dict[str, Any] = {}
    code: int | None = None
    try:
        for kind, data in _records(channel, word, faults):
            if kind == "test":
                status = _status(data)
                if status:
                    lines[status].append(data["id"])
            elif kind == "collect":
                lines["ERROR"].append(data["id"])
            elif kind == "canaries":
                planted = {name: str(data[name]) for name in ("passing", "failing") if data[name] is not None}
            elif kind == "state":
                faults += [f"changed {name}" for name in data["changed"]]
                faults += [f"a plugin {name}" for name in data["foreign"]]
            elif kind == "broken":
                faults.append(str(data["why"]))
            elif kind == "end":
                code = data["code"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        faults.append("a record is not as the recorder makes them")
        code = None
    said = summary.of_lines(f"{status} {name}" for status, names in lines.items() for name in names)
    return Records(said, _key(planted.get("passing")), _key(planted.get("failing")), code, tuple(faults))


def _records(channel: str, word: str, faults: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    count = 0
    for line in channel.splitlines():
        head = f"{word} {count} "
        if not line.startswith(head):
            if count:
                faults.append("something else wrote to the channel")
                return
            continue
        count += 1
        kind, data = json.loads(line.removeprefix(head))
        yield kind, data
        if kind == "end":
            return


def _status(data: dict[str, Any]) -> str | None:
    """The word of the summary for one report; None where it shows none of the three."""
    if data["outcome"] == "passed":
        return "PASSED" if data["when"] == "call" and not data["xfail"] else None
    if data["outcome"] == "failed":
        return "FAILED" if data["when"] == "call" else "ERROR"
    return None


def _key(name: str | None) -> str | None:
    return None if name is None else next(iter(summary.of_lines([f"PASSED {name}"])))
