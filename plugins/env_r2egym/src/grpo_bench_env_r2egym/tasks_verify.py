"""Checks a file of tasks, a line at a time; every finding names its line."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

from grpo_bench.contract import InputError, PlanError

from . import rows
from .images import find_image
from .rows import Place, RowError
from .tasks_build import grade
from .tasks_commit import patch_of


def findings(file: Path, *, images: Path | None, against: Path | None, sha256: str | None,
             grade: bool) -> Iterator[str]:
    """What is wrong with a file; InputError where it, or something to check it with, is not there."""
    if grade and images is None:
        raise InputError("grading needs the tasks' images", hint="give --images DIR")
    if images is not None and not images.is_dir():
        raise InputError(f"{images}: there is no such folder")
    with _opened(file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if sha256 is not None and digest != sha256.lower():
        yield f"{file}: SHA-256 is {digest} and not {sha256}"
    others = {} if against is None else _lines(against)
    places: list[Place] = []
    whole = True
    for found in rows.scan(file):
        if isinstance(found, RowError):
            whole = False
            yield str(found.message)
            continue
        places.append(found)
        where = f"{file}, line {found.number}: {found.instance_id}"
        if found.instance_id in others:
            yield f"{where} is on line {others[found.instance_id]} of {against} too"
        yield from _row(file, found, where, images)
    print(f"{digest}  {file} ({len(places)} tasks)")
    if grade and images is not None and whole:
        yield from _gradings(file, places, images)


def _row(file: Path, place: Place, where: str, images: Path | None) -> Iterator[str]:
    row = rows.read(file, place.number, place.offset, place.length, place.sha256)
    for name in ("instance_id", "problem_statement"):
        if row.metadata and name in row.columns and row.columns[name] != row.metadata[name]:
            yield f"{where}: {name} in instance_dict differs from that of the row"
    if row.columns.get("parsed_commit_content"):
        try:
            patch_of(row.columns["parsed_commit_content"])
        except ValueError as error:
            yield f"{where}: parsed_commit_content {error}"
    if images is not None:
        try:
            if find_image(images, place.instance_id, place.dataset) is None:
                yield f"{where} has no image in {images}"
        except PlanError as error:
            yield f"{where}: {error}"


def _gradings(file: Path, places: list[Place], images: Path) -> Iterator[str]:
    """No change must be graded 0 and the fix 1, in both modes."""
    for number, place in enumerate(places):
        where = f"{file}, line {place.number}: {place.instance_id}"
        row = rows.read(file, place.number, place.offset, place.length, place.sha256)
        try:
            fix = patch_of(row.columns.get("parsed_commit_content", ""))
        except ValueError as error:
            yield f"{where}: cannot be graded: parsed_commit_content {error}"
            continue
        for name, patch, wanted in (("no change", "", 0.0), ("the fix", fix, 1.0)):
            try:
                score, detail = asyncio.run(grade(file, number, images, patch))
            except PlanError as error:
                yield f"{where}: cannot be graded: {error}"
                break
            if score != wanted:
                yield f"{where}: {name} is graded {score} where it must be {wanted:g}: {detail}"


def _lines(path: Path) -> dict[str, int]:
    return {found.instance_id: found.number for found in rows.scan(path) if isinstance(found, Place)}


def _opened(path: Path):
    try:
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
