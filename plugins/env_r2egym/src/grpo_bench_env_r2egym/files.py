"""The two files of tasks: whether they are here, and whether they are the ones they should be."""

from __future__ import annotations

from grpo_bench.contract import Missing, PlanError

from . import rows
from .config import R2EGymConfig
from .rows import Index

SPLITS = ("train", "validation")


def absent(config: R2EGymConfig) -> list[str]:
    """A line for each file that is not here."""
    lines = []
    for split in SPLITS:
        path, expected = getattr(config, split), getattr(config, f"{split}_expected")
        if not path.is_file():
            size = f" of {expected.bytes:,} bytes with SHA-256 {expected.sha256}" if expected else ""
            lines.append(f"{split} tasks: no file {path}{size}")
    return lines


def indexed(config: R2EGymConfig) -> dict[str, Index]:
    """Both files, gone through. Missing where one is not here, PlanError where one is another than it should be."""
    if lines := absent(config):
        raise Missing("; ".join(lines), items=lines)
    found = {split: index(config, split) for split in SPLITS}
    rows.check_overlap(found["train"], found["validation"])
    return found


def index(config: R2EGymConfig, split: str) -> Index:
    """One file that is here, gone through."""
    path, expected = getattr(config, split), getattr(config, f"{split}_expected")
    size = path.stat().st_size
    if expected and size != expected.bytes:
        raise PlanError(f"{path} has {size:,} bytes, and should have {expected.bytes:,}", hint="fetch it again")
    found = rows.index(path)
    if expected and found.sha256 != expected.sha256:
        raise PlanError(f"{path} has SHA-256 {found.sha256}, and should have {expected.sha256}", hint="fetch it again")
    return found
