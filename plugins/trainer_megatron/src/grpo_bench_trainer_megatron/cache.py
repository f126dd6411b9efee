# pyright: reportMissingImports=false
"""A policy's HF checkpoint in Megatron's form, converted once.

Below the cache folder each checkpoint has a folder of its own, named by a hash of its configuration and weights and by
the dtype the weights are computed in. It holds the weights in torch_dist form, which any layout can read, and
``fingerprint.json``: model, revision, the versions that converted it, and the seals of what they wrote. What is
missing is made at first use: under a temporary name, renamed when whole, while a lock on a file beside it makes other
runs wait. One that another stack made, or whose files have changed, is refused and never replaced, since a run that is
under way may read it.

Files are hashed as :mod:`grpo_bench.steps.seals` says: to read large ones whole would take longer than converting.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from grpo_bench.contract import PluginError
from grpo_bench.steps.seals import seal_of, seals

from .checkpoints import read, versions, write

NOTE, WEIGHTS = "fingerprint.json", "weights"
_PATIENCE = timedelta(days=7)
_REVISION = re.compile(r"[0-9a-f]{40}")


def load(bridge: Any, chunks: Sequence[Any], checkpoint: Path, cache: str, dtype: str) -> None:
    """Fill the chunks' weights, on all ranks at once, converting the checkpoint if no one has yet."""
    group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)
    first = dist.get_rank() == 0
    home = folder_of(cache)
    answer: list[Any] = [None]
    with _held(home, first, answer) as lock:
        if lock is not None:
            answer[0] = _look(home, checkpoint, dtype)
        dist.broadcast_object_list(answer, 0, group=group)
        if isinstance(answer[0], PluginError):
            raise answer[0]
        place, ready, temporary = answer[0]
        if not ready:
            bridge.load_hf_weights(list(chunks))
            write(temporary / WEIGHTS, chunks)
            dist.barrier(group=group)
            if first:
                seal(temporary, fingerprint(checkpoint, dtype))
                os.replace(temporary, place)
    if ready:
        read(place / WEIGHTS, chunks)
    dist.barrier(group=group)
    dist.destroy_process_group(group)


def folder_of(cache: str) -> Path:
    """The cache folder that the settings name."""
    if cache != "auto":
        return Path(cache).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "grpo-bench" / "megatron"


@contextmanager
def _held(home: Path, first: bool, answer: list[Any]) -> Iterator[int | None]:
    """The cache's lock, for the rank that decides; where it cannot be had, ``answer`` says why."""
    if not first:
        yield None
        return
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        answer[0] = PluginError(f"the cache {home} cannot be written: {error.strerror}",
                                hint="give a writable folder in trainer.cache")
        yield None
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _look(home: Path, checkpoint: Path, dtype: str) -> Any:
    """Place, whether it is ready, and where to make it if not; or why it cannot be used."""
    mine = fingerprint(checkpoint, dtype)
    place = home / f"{mine['model'][:24]}-{dtype}"
    temporary = home / f".{place.name}.tmp"
    if place.is_dir():
        return refused(place, mine) or (place, True, temporary)
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / WEIGHTS).mkdir(parents=True)
    return place, False, temporary


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


def fingerprint(checkpoint: Path, dtype: str) -> dict[str, Any]:
    """What decides how a converted checkpoint comes out."""
    files = [checkpoint / "config.json", *sorted(checkpoint.glob("*.safetensors"))]
    model = hashlib.sha256(json.dumps([(file.name, seal_of(file)) for file in files]).encode()).hexdigest()
    return {"model": model, "dtype": dtype, "revision": revision(checkpoint), "versions": versions()}


def revision(checkpoint: Path) -> str:
    """The hub's commit, where the folder's path tells it (``snapshots/<commit>``); else ``unknown``."""
    real = checkpoint.resolve()
    known = real.parent.name == "snapshots" and _REVISION.fullmatch(real.name)
    return real.name if known else "unknown"


def _shown(value: Any) -> str:
    return ", ".join(f"{name} {part}" for name, part in value.items()) if isinstance(value, dict) else str(value)
