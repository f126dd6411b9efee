"""Rows of task files: one JSON object a line, far too many megabytes to keep.

Two forms are read: the benchmark's (``responses_create_params.metadata``, whose ``instance_dict`` is a JSON text with
R2E-Gym's columns) and R2E-Gym's own (the columns themselves). A file is gone through once, a line at a time, which
checks every row and leaves an :class:`Index` of where each lies; a row is read again when it is needed, and its hash
says that it is still the same. The order of a file is part of it and is kept. Every complaint names file, line and
field.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from grpo_bench.contract import PlanError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

INSTANCE_ID = r"[A-Za-z0-9.-]+(?:_[A-Za-z0-9.-]+)*__[A-Za-z0-9._-]+-[0-9a-f]{40}"
"""owner__repository-commit."""
DATASET = "R2E-Gym/R2E-Gym-Subset"
"""Where R2E-Gym's own rows come from."""
OWNERS: Mapping[str, str] = {
    "aiohttp": "aio-libs", "coveragepy": "nedbat", "datalad": "datalad", "numpy": "numpy", "orange3": "biolab",
    "pandas": "pandas-dev", "pillow": "python-pillow", "pyramid": "Pylons", "scrapy": "scrapy", "sympy": "sympy",
    "tornado": "tornadoweb",
}
"""Whose the repositories of R2E-Gym are; its own rows name the repository only."""


class RowError(PlanError):
    """A line of a task file is no row."""

    @classmethod
    def at(cls, path: Path, number: int, name: str, what: str) -> RowError:
        return cls(f"{path}, line {number}: {name + ': ' if name else ''}{what}")


@dataclass(frozen=True, slots=True)
class Row:
    """One task as its file has it. ``metadata`` are the benchmark's fields around the columns (empty in R2E-Gym's own
    form), ``columns`` those of R2E-Gym: ``parsed_commit_content`` is the fix and ``execution_result_content`` holds
    hidden tests, so neither ever enters a prompt or an agent's sandbox. ``expected`` maps tests to PASSED, FAILED or
    ERROR."""

    instance_id: str
    dataset: str
    repo: str
    statement: str
    expected: Mapping[str, str] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    columns: Mapping[str, Any] = field(repr=False)
    sha256: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row lies in its file."""

    instance_id: str
    dataset: str
    number: int
    offset: int
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """A task file that was gone through: its rows in order, its size and hash."""

    path: Path
    places: tuple[Place, ...]
    size: int
    sha256: str


M = TypeVar("M", bound=BaseModel)


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)


Text = Annotated[str, Field(min_length=1, pattern=r"\S")]


class _Columns(_Model):
    expected_output_json: str
    docker_image: str = ""
    parsed_commit_content: str = ""
    execution_result_content: str = ""


class _Own(_Columns):
    commit_hash: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    repo_name: Text
    problem_statement: Text
    instance_id: Annotated[str, Field(pattern=f"^({INSTANCE_ID})?$")] = ""


class _Metadata(_Model):
    instance_id: Annotated[str, Field(pattern=f"^{INSTANCE_ID}$")]
    repo: Text
    base_commit: Text
    dataset_name: Text
    split: Text
    problem_statement: Text
    instance_dict: str


class _Parameters(_Model):
    input: list[Any]
    metadata: _Metadata


class _Agent(_Model):
    type: Text
    name: Text


class _Benchmark(_Model):
    responses_create_params: _Parameters
    agent_ref: _Agent


def parse(line: bytes, path: Path, number: int) -> Row:
    """The row of one line; RowError where it is none."""
    data = _json(line, path, number, "")
    if not isinstance(data, dict):
        raise RowError.at(path, number, "", "is no JSON object")
    digest = hashlib.sha256(line.rstrip(b"\r\n")).hexdigest()
    if "responses_create_params" not in data and "expected_output_json" in data:
        own = _checked(_Own, data, path, number, "")
        expected = _expected(own.expected_output_json, path, number, "expected_output_json")
        instance_id = own.instance_id or instance_id_of(own.repo_name, own.commit_hash)
        return Row(instance_id, DATASET, own.repo_name, own.problem_statement, expected, {}, data, digest)
    metadata = _checked(_Benchmark, data, path, number, "").responses_create_params.metadata
    where = "responses_create_params.metadata.instance_dict"
    columns = _json(metadata.instance_dict.encode(), path, number, where)
    if not isinstance(columns, dict):
        raise RowError.at(path, number, where, "is no JSON object")
    checked = _checked(_Columns, columns, path, number, f"{where}.")
    expected = _expected(checked.expected_output_json, path, number, f"{where}.expected_output_json")
    return Row(metadata.instance_id, metadata.dataset_name, metadata.repo, metadata.problem_statement, expected,
               data["responses_create_params"]["metadata"], columns, digest)


def instance_id_of(repo_name: str, commit: str) -> str:
    """The instance id of one of R2E-Gym's own rows."""
    return f"{OWNERS.get(repo_name.lower(), repo_name)}__{repo_name}-{commit}"


def scan(path: Path) -> Iterator[Place | RowError]:
    """Every line of a file, in order, as the place of a row or as what is wrong with it; reads a line at a time."""
    seen: dict[str, int] = {}
    offset, number = 0, 0
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            start, offset = offset, offset + len(line)
            try:
                row = parse(line, path, number)
            except RowError as error:
                yield error
                continue
            first = seen.setdefault(row.instance_id, number)
            if first != number:
                yield RowError.at(path, number, "instance_id", f"{row.instance_id} is on line {first} already")
            else:
                yield Place(row.instance_id, row.dataset, number, start, len(line), row.sha256)
    if number == 0:
        yield RowError.at(path, 1, "", "the file is empty")


def index(path: Path) -> Index:
    """Go through a file; the first line that is wrong ends it. Kept for as long as the file stays as it is."""
    try:
        stat = path.stat()
    except OSError as error:
        raise RowError(f"{path}: {error.strerror}", hint="name a file of tasks") from error
    return _indexed(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _indexed(path: Path, size: int, changed_ns: int) -> Index:
    places: list[Place] = []
    for found in scan(path):
        if isinstance(found, RowError):
            raise found
        places.append(found)
    with _opened(path) as file:
        return Index(path, tuple(places), size, hashlib.file_digest(file, "sha256").hexdigest())


def read(path: Path, number: int, offset: int, length: int, sha256: str) -> Row:
    """One row again; RowError where the file is not what it was."""
    with _opened(path) as file:
        file.seek(offset)
        line = file.read(length)
    if hashlib.sha256(line.rstrip(b"\r\n")).hexdigest() != sha256:
        raise RowError.at(path, number, "", "changed while it was in use; start again")
    return parse(line, path, number)


def check_overlap(train: Index, validation: Index) -> None:
    """No task may be both trained on and validated with."""
    lines = {place.instance_id: place.number for place in train.places}
    both = [place for place in validation.places if place.instance_id in lines]
    if both:
        first = both[0]
        raise RowError.at(validation.path, first.number, "instance_id",
                          f"{first.instance_id} is a task of {train.path} too (line {lines[first.instance_id]}); "
                          f"{len(both)} in all are in both")


def _opened(path: Path) -> Any:
    try:
        return path.open("rb")
    except OSError as error:
        raise RowError(f"{path}: {error.strerror}", hint="name a file of tasks") from error


def _json(text: bytes, path: Path, number: int, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError.at(path, number, name, f"is no JSON: {error}") from None


def _checked(model: type[M], data: Any, path: Path, number: int, prefix: str) -> M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = prefix + ".".join(str(part) for part in first["loc"])
        raise RowError.at(path, number, name, first["msg"]) from None


def _expected(text: str, path: Path, number: int, name: str) -> dict[str, str]:
    found = _json(text.encode(), path, number, name)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise RowError.at(path, number, name, "maps no tests to statuses")
    if not found:
        raise RowError.at(path, number, name, "expects nothing, so whatever fails would count as solved")
    return found
