"""Whose a converted checkpoint is: the note beside it, and where it lies. Nothing here needs torch.

Below the cache folder each checkpoint has a folder of its own, named by a hash of its configuration and weights and by
the dtype the weights are computed in. ``fingerprint.json`` in it has model, revision, the versions that converted it,
and the seals of what they wrote.

Files are hashed as :mod:`grpo_bench.steps.seals` says: to read large ones whole would take longer than converting.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import PluginError
from grpo_bench.steps.seals import seal_of, seals

NOTE, WEIGHTS = "fingerprint.json", "weights"
STACK = ("megatron-core", "megatron-bridge", "torch")
"""What decides how a checkpoint is converted and stored: one that others made is not used."""
_REVISION = re.compile(r"[0-9a-f]{40}")


def folder_of(cache: str) -> Path:
    """The cache folder that the settings name."""
    if cache != "auto":
        return Path(cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grpo-bench" / "megatron"


def place_of(home: Path, mine: Mapping[str, Any]) -> Path:
    """Where the checkpoint with that fingerprint lies."""
    return home / f"{mine['model'][:24]}-{mine['dtype']}"


def seal(place: Path, mine: Mapping[str, Any]) -> None:
    """Note beside converted weights whose they are and what they are."""
    with (place / NOTE).open("w", encoding="utf-8") as file:
        file.write(json.dumps({**mine, "written": seals(place / WEIGHTS)}, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())


def refused(place: Path, mine: Mapping[str, Any]) -> PluginError | None:
    """Why a cached checkpoint must not be used; None where it may."""
    try:
        theirs = json.loads((place / NOTE).read_text("utf-8"))
    except (OSError, ValueError) as error:
        return PluginError(f"{place} has no readable {NOTE}: {error}", hint="remove that folder")
    for name in ("model", "dtype", "versions", "revision"):
        if theirs.get(name) != mine[name]:
            return PluginError(f"{place} was made with {name} {_shown(theirs.get(name))}, this run has "
                               f"{_shown(mine[name])}",
                               hint="remove that folder where no run uses it, or name another in trainer.cache")
    if theirs.get("written") != seals(place / WEIGHTS):
        return PluginError(f"{place} is damaged: its files are not those that were written", hint="remove that folder")
    return None


def fingerprint(checkpoint: Path, dtype: str, versions: Mapping[str, str]) -> dict[str, Any]:
    """What decides how a converted checkpoint comes out; ``versions`` are those of the stack."""
    files = [checkpoint / "config.json", *sorted(checkpoint.glob("*.safetensors"))]
    model = hashlib.sha256(json.dumps([(file.name, seal_of(file)) for file in files]).encode()).hexdigest()
    return {"model": model, "dtype": dtype, "revision": revision(checkpoint), "versions": dict(versions)}


def revision(checkpoint: Path) -> str:
    """The hub's commit, where the folder's path tells it (``snapshots/<commit>``); else ``unknown``."""
    real = checkpoint.resolve()
    known = real.parent.name == "snapshots" and _REVISION.fullmatch(real.name)
    return real.name if known else "unknown"


def _shown(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)
