"""Unified diffs of one file: made from two texts, and applied again exactly where they say."""

from __future__ import annotations

import difflib
import re
from itertools import pairwise

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_CUT = "\\ No newline at end of file\n"


class PatchError(ValueError):
    """The patch does not fit the file."""


def make(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(_split(before), _split(after), f"a/{path}", f"b/{path}")
    return "".join(line if line.endswith("\n") else f"{line}\n{_CUT}" for line in lines)


def apply(patch: str, path: str, text: str) -> str:
    """``text`` of the file ``path`` after the patch; what the patch says about other files is left out."""
    before, after = _split(text), []
    at = old = new = 0  # lines of before that are done; lines that the hunk still has of either side
    name = ""
    for line in _lines(patch):
        if not old and not new:
            if line.startswith("+++ "):
                name = line[4:].split("\t")[0].strip().removeprefix("b/")
            elif hunk := _HUNK.match(line):
                start, old, new = (int(number or 1) for number in hunk.groups())
                first = start - 1 if old else start
                if name == path:
                    if not at <= first <= len(before):
                        raise PatchError(f"no line {start} to change in {path}")
                    after, at = after + before[at:first], first
            continue
        sign, content = (" ", line) if line == "\n" else (line[0], line[1:])
        if sign not in " -+":
            raise PatchError(f"not a line of a patch: {line.strip():.60}")
        old, new = old - (sign != "+"), new - (sign != "-")
        if name == path and sign != "+":
            if before[at:at + 1] != [content]:
                raise PatchError(f"line {at + 1} of {path} is not {content.strip()!r:.60}")
            at += 1
        if name == path and sign != "-":
            after.append(content)
    if old or new:
        raise PatchError("the patch ends in the middle of a hunk")
    return "".join(after + before[at:])


def _lines(patch: str) -> list[str]:
    """The patch's lines; one before the mark of a missing newline has none."""
    lines = _split(patch)
    pairs = pairwise([*lines, ""])
    return [line.removesuffix("\n") if following == _CUT else line for line, following in pairs if line != _CUT]


def _split(text: str) -> list[str]:
    """Lines with their ends; only a newline ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
