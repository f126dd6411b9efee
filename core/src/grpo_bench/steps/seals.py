"""Which files a checkpoint is made of, so that one whose files have changed since is noticed before it is used.

The seal of a file is a hash. A file up to 64 MiB is hashed whole. Of a larger one the size and samples spread over it
are: reading all of a large policy's checkpoint again would take longer than training it a step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

WHOLE = 64 * 2**20
_SAMPLES, _SAMPLE = 64, 64 * 2**10


def seals(folder: Path) -> dict[str, str]:
    """The seal of each file below ``folder``, by its path there."""
    return {path.relative_to(folder).as_posix(): seal_of(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def broken(folder: Path, expected: Mapping[str, str]) -> str:
    """What is wrong with the first file that is not as it was; empty where all are."""
    found = seals(folder)
    for name in sorted({*expected, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong to it"
        if found[name] != expected[name]:
            return f"{name} is not what was written"
    return ""


def seal_of(file: Path) -> str:
    size = file.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with file.open("rb") as opened:
        if size <= WHOLE:
            digest.update(opened.read())
        else:
            for number in range(_SAMPLES):
                opened.seek(number * (size - _SAMPLE) // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()
