"""Which SIF image belongs to a task, found in the order that the benchmark's reference uses.

Images lie in one folder or in its subfolder ``r2egym``. Each name is asked for exactly, in both folders: for rows of
R2E-Gym first repository and commit (``numpy_final_<commit>``), then the instance id, then the id with its ``__``
written as ``_1776_`` and as ``_s_``, each also in lower case. Only where none of them is there, the folders are
searched for names that contain one of these ids; of several that do, the first by name counts. That search is the only
thing that lists a folder, and a listing is kept for as long as the folder does not change.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SUBFOLDER, SUFFIX = "r2egym", ".sif"
DATASET = "R2E-Gym"
STAND_INS = ("_1776_", "_s_")
"""What stands for the ``__`` of an instance id where names of images may not have it."""
OWNER_AND_REPOSITORY = re.compile(r"[^_]+__([^-]+)-")


def find_sif(images: Path, instance_id: str, row: Mapping[str, Any]) -> Path | None:
    """The image of a task, or None. ``row`` has the metadata of the task's row, of which ``dataset_name`` is read."""
    folders = (images, images / SUBFOLDER)
    if DATASET in row.get("dataset_name", DATASET):
        name = repository_and_commit(instance_id) + SUFFIX
        for folder in folders:
            if (folder / name).exists():
                return folder / name
    ids = tuple(_ids(instance_id))
    for folder in folders:
        for name in ids:
            path = folder / (name + SUFFIX)
            if path.exists():
                return path
    for folder in folders:
        for part in (instance_id, instance_id.lower(), *ids):
            for name in _listing(folder):
                if part in name:
                    return folder / name
    return None


def repository_and_commit(instance_id: str) -> str:
    """``numpy__numpy-<commit>`` as images of R2E-Gym are named: ``numpy_final_<commit>``."""
    return OWNER_AND_REPOSITORY.sub(lambda match: f"{match[1].lower()}_final_", instance_id)


def _ids(instance_id: str) -> Iterator[str]:
    yield instance_id
    for stand_in in STAND_INS:
        replaced = instance_id.replace("__", stand_in)
        yield replaced
        yield replaced.lower()


def _listing(folder: Path) -> tuple[str, ...]:
    """Names of the images in a folder, sorted; hidden ones, as unfinished images are, do not count."""
    try:
        return _listed(str(folder), os.stat(folder).st_mtime_ns)
    except OSError:
        return ()


@functools.lru_cache(maxsize=16)
def _listed(folder: str, changed_ns: int) -> tuple[str, ...]:
    return tuple(sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith(".")))
