"""Tasks as the rest of the benchmark sees them.

A prompt holds a task's statement, repository, folder and id, and nothing else of its row. The payload only says where
the row lies; the fix, the hidden tests and the expected results stay in the file until grading reads them.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from grpo_bench.contract import Task

from . import rows
from .images import WORKDIR
from .rows import Index, Place, Row


class TaskList(Sequence[Task]):
    """The tasks of one file in its order, each read when it is asked for and the latest of them kept."""

    def __init__(self, split: str, found: Index) -> None:
        self._split, self._index = split, found
        self._make = functools.lru_cache(maxsize=2048)(self._made)

    def __len__(self) -> int:
        return len(self._index.places)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        places = self._index.places[index]
        return self._make(places) if isinstance(places, Place) else [self._make(place) for place in places]

    def _made(self, place: Place) -> Task:
        path = self._index.path
        row = rows.read(path, place.number, place.offset, place.length, place.sha256)
        payload = {"file": str(path), "line": place.number, "offset": place.offset, "length": place.length,
                   "sha256": place.sha256}
        prompt = redacted(row)
        text = json.dumps([self._split, prompt, place.sha256], sort_keys=True)
        return Task(row.instance_id, self._split, prompt, payload, hashlib.sha256(text.encode()).hexdigest())


def redacted(row: Row) -> dict[str, str]:
    """All of a row that an agent may see."""
    return {"statement": row.statement, "workdir": WORKDIR, "repo": row.repo, "instance_id": row.instance_id}


def row_of(payload: Mapping[str, Any]) -> Row:
    """The row of a task, read again."""
    return rows.read(Path(payload["file"]), payload["line"], payload["offset"], payload["length"], payload["sha256"])
