"""Unified diffs: making one from two states of the files, and applying one to a file.

A hunk applies where its old lines are found exactly, at the line it names or else at the nearest other place after the
hunk before it; there is no fuzz. What cannot be read or does not apply is a PatchError.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_NO_NEWLINE = "\\ No newline at end of file"


class PatchError(ValueError):
    """The text is no unified diff, or does not fit the file."""


@dataclass(frozen=True, slots=True)
class _Hunk:
    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def make(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Diff of all files, by path; "" where nothing changed."""
    parts: list[str] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path, ""), after.get(path, "")
        if old == new and path in before:
            continue
        name = f"a/{path}" if path in before else "/dev/null"
        for line in difflib.unified_diff(_split(old), _split(new), name, f"b/{path}"):
            parts.append(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n")
    return "".join(parts)


def apply(patch: str, path: str, text: str) -> str:
    """``text`` of the file ``path`` after the patch; what the patch does to other files is left out."""
    lines = _split(text)
    moved, floor = 0, 0
    for hunk in _hunks(patch).get(path, []):
        at = _find(lines, hunk.old, hunk.start + moved, floor)
        lines[at:at + len(hunk.old)] = hunk.new
        moved = at - hunk.start + len(hunk.new) - len(hunk.old)
        floor = at + len(hunk.new)
    return "".join(lines)


def _split(text: str) -> list[str]:
    """Lines with their ends; only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _find(lines: list[str], old: tuple[str, ...], start: int, floor: int) -> int:
    places = range(floor, len(lines) - len(old) + 1)
    for at in sorted(places, key=lambda place: abs(place - start)):
        if tuple(lines[at:at + len(old)]) == old:
            return at
    raise PatchError(f"a hunk meant for line {start + 1} does not fit the file")


def _hunks(patch: str) -> dict[str, list[_Hunk]]:
    found: dict[str, list[_Hunk]] = {}
    lines = _split(patch)
    path, at = "", 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.startswith("--- ") and at < len(lines) and lines[at].startswith("+++ "):
            path = lines[at][4:].split("\t")[0].strip().removeprefix("b/")
            at += 1
        elif line.startswith("@@"):
            match = _HUNK.match(line)
            if match is None or not path:
                raise PatchError(f"not a hunk of a file: {line.strip():.60}")
            hunk, at = _read_hunk(lines, at, match)
            found.setdefault(path, []).append(hunk)
    return found


def _read_hunk(lines: list[str], at: int, match: re.Match[str]) -> tuple[_Hunk, int]:
    count_old, count_new = (int(match[group] or 1) for group in (2, 4))
    old: list[str] = []
    new: list[str] = []
    while at < len(lines) and (len(old) < count_old or len(new) < count_new or lines[at].startswith("\\")):
        sign, content = lines[at][0], lines[at][1:]
        at += 1
        if sign == "\\":
            _trim(old, new, lines[at - 2][0])
        elif sign in " \n":
            content = content if sign == " " else "\n"
            old.append(content)
            new.append(content)
        elif sign == "-":
            old.append(content)
        elif sign == "+":
            new.append(content)
        else:
            raise PatchError(f"not a line of a hunk: {sign}{content.strip():.60}")
    if (len(old), len(new)) != (count_old, count_new):
        raise PatchError("a hunk holds other numbers of lines than its head says")
    start = int(match[1]) - (1 if count_old else 0)
    return _Hunk(start, tuple(old), tuple(new)), at


def _trim(old: list[str], new: list[str], sign: str) -> None:
    """The line before a no-newline mark has no newline after all."""
    for lines, signs in ((old, " -"), (new, " +")):
        if sign in signs and lines:
            lines[-1] = lines[-1].removesuffix("\n")
