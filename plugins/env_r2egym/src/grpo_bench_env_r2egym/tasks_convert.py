"""Makes the benchmark's two files of R2E-Gym's rows, in the order of two lists of instance ids.

Rows are gone through once, which leaves where each of the wanted ones lies; they are read again one at a time in the
order wanted, so nothing depends on how large the data set is. Rows in parquet files are first written out as lines.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_bench.contract import InputError

from . import rows
from .rows import Row, RowError
from .tasks_row import DATE, envelope

SPLITS = ("train", "validation")
_Where = tuple[Path, rows.Place]


def convert(dataset: Path, lists: list[Path], out: Path, cache: Path | None) -> Iterator[tuple[Path, str, int]]:
    """Both files: path, SHA-256 and number of tasks of each."""
    wanted = [_ids(path) for path in lists]
    if both := sorted(set(wanted[0]) & set(wanted[1])):
        raise InputError(f"{lists[0]} and {lists[1]} share {len(both)} ids, such as {both[0]}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".part-") as temporary:
        lines = [_as_lines(path, cache or Path(temporary)) for path in _files(dataset)]
        places = _places(lines, {name for names in wanted for name in names})
        for path, names in zip(lists, wanted, strict=True):
            if absent := [name for name in names if name not in places]:
                raise InputError(f"{path}: {dataset} has no row for {len(absent)} of its ids, such as {absent[0]}")
        done = [_write(Path(temporary) / split, split, [places[name] for name in names])
                for split, names in zip(SPLITS, wanted, strict=True)]
        for split, digest, names in zip(SPLITS, done, wanted, strict=True):
            path = out / f"{split}.jsonl"
            (Path(temporary) / split).replace(path)
            yield path, digest, len(names)


def benchmark_row(row: Row, split: str) -> dict[str, Any]:
    """A row of R2E-Gym in the benchmark's form."""
    columns = {"FAIL_TO_PASS": [], "PASS_TO_PASS": [], "container_formatter": "", **row.columns,
               "instance_id": row.instance_id}
    commit = columns["commit_hash"]
    return envelope({
        "instance_id": row.instance_id, "base_commit": columns.get("base_commit") or commit,
        "dataset_name": row.dataset, "split": split, "problem_statement": row.statement, "hints_text": "",
        "version": "", "created_at": columns.get("created_at") or DATE,
        "instance_dict": json.dumps(columns, sort_keys=True), "repo": row.repo}, split)


def _write(path: Path, split: str, places: list[_Where]) -> str:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for source, place in places:
            row = rows.read(source, place.number, place.offset, place.length, place.sha256)
            line = json.dumps(benchmark_row(row, split), sort_keys=True).encode() + b"\n"
            rows.parse(line, path, place.number)
            digest.update(line)
            file.write(line)
    return digest.hexdigest()


def _places(files: list[Path], wanted: set[str]) -> dict[str, _Where]:
    found: dict[str, _Where] = {}
    for path in files:
        for place in rows.scan(path):
            if isinstance(place, RowError):
                raise place
            if place.instance_id in wanted and place.instance_id in found:
                raise InputError(f"{place.instance_id} is in {found[place.instance_id][0]} and in {path}")
            if place.instance_id in wanted:
                found[place.instance_id] = path, place
    return found


def _ids(path: Path) -> list[str]:
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    names = [line for line in lines if line]
    if not names:
        raise InputError(f"{path}: there are no ids in it")
    if twice := sorted({name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()):
        raise InputError(f"{path}: {twice[0]} is there more than once")
    return names


def _files(dataset: Path) -> list[Path]:
    found = sorted(path for path in dataset.rglob("*") if path.suffix in (".jsonl", ".parquet")) if dataset.is_dir() \
        else [dataset]
    if not found or not found[0].exists():
        raise InputError(f"{dataset}: there are no .jsonl or .parquet files")
    return found


def _as_lines(path: Path, cache: Path) -> Path:
    """A file of rows as lines; those of a parquet file are written into ``cache`` where they are not there yet."""
    if path.suffix != ".parquet":
        return path
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path} needs pyarrow to be read", hint="install pyarrow, or give JSONL") from None
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache.mkdir(parents=True, exist_ok=True)
    lines = cache / f"{digest}.jsonl"
    if not lines.exists():
        part = lines.with_suffix(".part")
        try:
            with part.open("w") as file:
                for batch in parquet.ParquetFile(path).iter_batches(batch_size=16):
                    file.writelines(json.dumps(row, default=str) + "\n" for row in batch.to_pylist())
        except ValueError as error:  # pyarrow's own are such
            raise InputError(f"{path} cannot be read as parquet: {error}", hint="download it again") from None
        part.replace(lines)
    return lines
