"""A change of files in R2E-Gym's form (``parsed_commit_content``), from git's diff and back to a patch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: (.*))?")
_KINDS = {" ": "context", "+": "added", "-": "deleted", "\\": "note"}
_SIGNS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


def parse_diff(text: str, before: Callable[[str], str], after: Callable[[str], str]) -> list[dict[str, Any]]:
    """The files of a diff; ``before`` and ``after`` give a file's content by its path."""
    return [_file(part, before, after) for part in re.split(r"^(?=diff --git )", text, flags=re.M) if part]


def _file(text: str, before: Callable[[str], str], after: Callable[[str], str]) -> dict[str, Any]:
    lines = text.removesuffix("\n").split("\n")
    path = lines[0].removeprefix("diff --git a/").rsplit(" b/", 1)[0]
    found: dict[str, Any] = {
        "old_file_content": before(path), "new_file_content": after(path),
        "header": {"file": {"path": path}, "misc_line": None}, "index_line": None, "is_binary_file": False,
        "binary_line": None, "minus_file": None, "plus_file": None, "hunks": []}
    for line in lines[1:]:
        if found["hunks"] and not _HUNK.match(line):
            kind, content = _KINDS[line[:1] or " "], line[1:]
            found["hunks"][-1]["line_group"]["all_lines"].append(
                {"content": content.removeprefix(" ") if kind == "note" else content, "type": kind})
        elif line.startswith(("new file mode", "deleted file mode")):
            found["header"]["misc_line"] = line
        elif line.startswith("index "):
            hashes, _, mode = line.removeprefix("index ").partition(" ")
            old, _, new = hashes.partition("..")
            found["index_line"] = {"old_commit_hash": old, "new_commit_hash": new, "mode": mode}
        elif line.startswith("--- "):
            found["minus_file"] = {"path": line[4:].rstrip("\t")}
        elif line.startswith("+++ "):
            found["plus_file"] = {"path": line[4:].rstrip("\t")}
        elif head := _HUNK.match(line):
            found["hunks"].append(_hunk(head))
        else:
            raise ValueError(f"{path}: git says {line!r}, which this does not know")
    return found


def _hunk(head: re.Match[str]) -> dict[str, Any]:
    ranges = [{"start": int(head[first]), "length": None if head[first + 1] is None else int(head[first + 1])}
              for first in (1, 3)]
    return {"descriptor": {"old_range": ranges[0], "new_range": ranges[1], "section": head[5] or ""},
            "line_group": {"all_lines": []}, "modified_entities": [], "added_entities": [], "deleted_entities": []}


def patch_of(content: str, wanted: Callable[[str], bool] = lambda path: True) -> str:
    """The patch of a commit in R2E-Gym's form. ValueError where it is none."""
    try:
        files = json.loads(content)["file_diffs"]
        return "".join(_rendered(item) for item in files if wanted(item["header"]["file"]["path"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is no commit in R2E-Gym's form: {type(error).__name__} {error}") from None


def _rendered(item: Mapping[str, Any]) -> str:
    return "\n".join(_lines(item)) + "\n"


def _lines(item: Mapping[str, Any]) -> Iterator[str]:
    path, index = item["header"]["file"]["path"], item.get("index_line")
    yield f"diff --git a/{path} b/{path}"
    if item["header"].get("misc_line"):
        yield item["header"]["misc_line"]
    if index:
        yield f"index {index['old_commit_hash']}..{index['new_commit_hash']} {index['mode']}".rstrip()
    if item.get("is_binary_file"):
        yield item["binary_line"]
    if item.get("minus_file") and item.get("plus_file"):
        yield f"--- {item['minus_file']['path']}"
        yield f"+++ {item['plus_file']['path']}"
    for hunk in item["hunks"]:
        ranges = [str(part["start"]) + ("" if part["length"] is None else f",{part['length']}")
                  for part in (hunk["descriptor"]["old_range"], hunk["descriptor"]["new_range"])]
        yield f"@@ -{ranges[0]} +{ranges[1]} @@ {hunk['descriptor']['section']}".rstrip()
        for line in hunk["line_group"]["all_lines"]:
            yield _SIGNS[line["type"]] + line["content"]
