# pyright: reportMissingImports=false
"""A policy's HF checkpoint in Megatron's form, converted once.

Each checkpoint has a folder of its own below the cache folder (:mod:`.cache_note`). It holds the weights in torch_dist
form, which any layout can read, and a note of whose they are. What is missing is made at first use: under a temporary
name, renamed when whole, while a lock on a file beside it makes other runs wait. One that another stack made, or whose
files have changed, is refused and never replaced, since a run that is under way may read it. Ranks on several hosts
need a cache that all of these share.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from grpo_bench.contract import PluginError

from .cache_note import WEIGHTS, fingerprint, folder_of, place_of, refused, seal
from .checkpoints import read, versions, write

_PATIENCE = timedelta(days=7)
_SHOWN_S, _LOOK_S = 10.0, 0.2


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
        _check_shared(place if ready else temporary, home, group)
        if not ready:
            bridge.load_hf_weights(list(chunks))
            write(temporary / WEIGHTS, chunks)
            dist.barrier(group=group)
            if first:
                seal(temporary, fingerprint(checkpoint, dtype, versions()))
                os.replace(temporary, place)
    if ready:
        read(place / WEIGHTS, chunks)
    dist.barrier(group=group)
    dist.destroy_process_group(group)


def _check_shared(folder: Path, home: Path, group: Any) -> None:
    """PluginError on all ranks where one of them does not see a folder that rank 0 made or found."""
    seen: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(seen, (_sees(folder), socket.gethostname()), group=group)
    for rank, (sees, host) in enumerate(seen):
        if not sees:
            raise PluginError(f"rank {rank} on {host} does not see {folder}, which rank 0 does",
                              hint=f"trainer.cache must be a folder that all hosts share; {home} is not")


def _sees(folder: Path) -> bool:
    """Whether a folder is there, which a shared file system may show to other hosts a moment later."""
    for _ in range(int(_SHOWN_S / _LOOK_S)):
        if folder.is_dir():
            return True
        threading.Event().wait(_LOOK_S)
    return folder.is_dir()


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
    mine = fingerprint(checkpoint, dtype, versions())
    place = place_of(home, mine)
    temporary = home / f".{place.name}.tmp"
    if place.is_dir():
        return refused(place, mine) or (place, True, temporary)
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / WEIGHTS).mkdir(parents=True)
    return place, False, temporary
