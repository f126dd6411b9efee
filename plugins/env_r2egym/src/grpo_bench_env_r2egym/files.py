"""The two files of tasks: whether they are here, and whether they are the ones they should be."""

from __future__ import annotations

from grpo_bench.contract import Missing

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


def fault(config: R2EGymConfig, split: str, size: int, sha256: str | None = None) -> str:
    """What is wrong with a file of that size and hash; empty where it is as it should be. None: not hashed."""
    path, expected = getattr(config, split), getattr(config, f"{split}_expected")
    if expected and size != expected.bytes:
        return f"{path} has {size:,} bytes, and should have {expected.bytes:,}"
    if expected and sha256 not in (None, expected.sha256):
        return f"{path} has SHA-256 {sha256}, and should have {expected.sha256}"
    return ""


def indexed(config: R2EGymConfig) -> dict[str, Index]:
    """Both files, gone through. Missing where one is not here or not the one it should be."""
    if lines := absent(config):
        raise Missing("; ".join(lines), items=lines)
    found = {split: index(config, split) for split in SPLITS}
    rows.check_overlap(found["train"], found["validation"])
    return found


def index(config: R2EGymConfig, split: str) -> Index:
    """One file that is here, gone through; Missing where it is not the one it should be."""
    path = getattr(config, split)
    if wrong := fault(config, split, path.stat().st_size):
        raise Missing(f"{split} tasks: {wrong}")
    found = rows.index(path)
    if wrong := fault(config, split, found.size, found.sha256):
        raise Missing(f"{split} tasks: {wrong}")
    return found
