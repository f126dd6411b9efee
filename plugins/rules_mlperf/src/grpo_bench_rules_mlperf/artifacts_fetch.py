"""Fetching artifacts: what is there is left alone, what is missing comes, nothing starts that has no room.

    metadata URIs ──> manifests ──> what is missing ──> room on each file system ──> transfers, several at once

A file that is there counts if its MD5 is the manifest's. One that is another is an error before anything is fetched,
since it may be somebody's; nothing that is there is ever written over.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from grpo_bench.contract import FileDigests, InputError

from .artifacts_manifest import Manifest
from .artifacts_transfer import DELAY_S, PART, FetchError, Hopeless, Stopped, Transfer, size_of

LOOK_S = 0.5
_NAMED = 5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """A file that is not there. ``size`` is None where its server does not say, ``begun`` what is there of it."""

    uri: str
    target: Path
    md5: str
    size: int | None
    begun: int

    @property
    def to_come(self) -> int:
        return max(0, (self.size or 0) - self.begun)


def missing(manifest: Manifest, digests: FileDigests) -> tuple[Wanted, ...]:
    """The files of a manifest that are not there; InputError where one is another, or lies where none should."""
    targets = {manifest.root / file.path: file for file in manifest.files}
    there = [target for target in targets if target.is_file()]
    try:
        found = digests(there, "md5")
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from None
    if others := [target for target in there if found[target] != targets[target].md5]:
        raise InputError(f"{several(others)} not what {manifest.artifact.name} should be by its manifest",
                         hint="nothing was written over; move what is there out of the way and fetch again")
    absent = [target for target in targets if target not in found]
    for target in absent:
        _check_plain(target, manifest.root)
    return tuple(Wanted(targets[target].uri, target, targets[target].md5, None, _begun(target)) for target in absent)


def sized(wanted: Sequence[Wanted], jobs: int) -> tuple[Wanted, ...]:
    """The same files with their sizes, as far as servers tell."""
    with ThreadPoolExecutor(jobs) as pool:
        sizes = pool.map(size_of, [item.uri for item in wanted])
        return tuple(replace(item, size=size) for item, size in zip(wanted, sizes))


def check_room(wanted: Iterable[Wanted]) -> None:
    """InputError where a file system has no room for what is to come to it."""
    folders: dict[int, Path] = {}
    needed: dict[int, int] = {}
    for item in wanted:
        folder = next(parent for parent in item.target.parents if parent.exists())
        device = folder.stat().st_dev
        folders[device] = folder
        needed[device] = needed.get(device, 0) + item.to_come
    for device, folder in folders.items():
        free = shutil.disk_usage(folder).free
        if needed[device] > free:
            raise InputError(f"{gigabytes(needed[device])} are to come and {folder} has room for {gigabytes(free)}",
                             hint="make room, or name another folder in the site file; nothing was fetched")


def fetch(wanted: Sequence[Wanted], jobs: int, say: Say, *, delay_s: float = DELAY_S) -> list[FetchError]:
    """Get the files, ``jobs`` at a time; the errors of those that could not be had."""
    stop = threading.Event()
    progress = _Progress(wanted, say)
    failed: list[FetchError] = []
    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(_one, item, stop, progress.add, delay_s) for item in wanted}
        try:
            for future in _as_completed(futures, progress.show):
                error = future.result()
                progress.done += error is None
                if error is not None:
                    failed.append(error)
                if isinstance(error, Hopeless):
                    break
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return failed


def keep(manifest: Manifest) -> None:
    """Leave the manifest beside what it describes."""
    part = manifest.kept.with_name(f".{manifest.kept.name}{PART}")
    part.write_text(manifest.text)
    os.replace(part, manifest.kept)


def several(files: Sequence[Path]) -> str:
    """Some files in words, with the verb."""
    names = ", ".join(map(str, files[:_NAMED])) + (", ..." if len(files) > _NAMED else "")
    return f"{names} is" if len(files) == 1 else f"{len(files)} files are ({names})"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size:,} bytes"


def _check_plain(target: Path, root: Path) -> None:
    """InputError where writing ``target`` would write somewhere else, or over something."""
    inside = [parent for parent in target.parents if parent.is_relative_to(root) and parent != root]
    for path in (target, *inside):
        if path.is_symlink():
            raise InputError(f"{path} is a link, and only plain files and folders are written",
                             hint="a revision in a hub's cache is completed by the hub's own program; else name a "
                                  "folder of its own in the site file")
        if path.exists() and (path == target or not path.is_dir()):
            raise InputError(f"{path} is no {'file' if path == target else 'folder'}", hint="move it out of the way")


def _begun(target: Path) -> int:
    part = target.with_name(target.name + PART)
    return part.stat().st_size if part.is_file() else 0


def _one(item: Wanted, stop: threading.Event, count: Callable[[int], None], delay_s: float) -> FetchError | None:
    try:
        item.target.parent.mkdir(parents=True, exist_ok=True)
        Transfer(item.uri, item.target, item.md5, stop=stop, count=count, delay_s=delay_s).run()
    except FetchError as error:
        return error
    except OSError as error:
        return FetchError(f"cannot make {item.target.parent}: {error.strerror}")
    except Stopped:
        return FetchError(f"{item.uri}: stopped")
    return None


def _as_completed(futures: set[Future[FetchError | None]],
                  look: Callable[[], None]) -> Iterator[Future[FetchError | None]]:
    while futures:
        done, futures = wait(futures, LOOK_S, FIRST_COMPLETED)
        look()
        yield from done


class _Progress:
    """How far all transfers together are."""

    def __init__(self, wanted: Sequence[Wanted], say: Say) -> None:
        self._files = len(wanted)
        self._known = all(item.size is not None for item in wanted)
        self._total = sum(item.size or 0 for item in wanted)
        self._bytes, self.done = 0, 0
        self._lock = threading.Lock()
        self._say = say
        self._began = datetime.now(UTC)

    def add(self, count: int) -> None:
        with self._lock:
            self._bytes += count

    def show(self) -> None:
        seconds = (datetime.now(UTC) - self._began).total_seconds()
        rate = self._bytes / max(seconds, LOOK_S)
        total = f" of {gigabytes(self._total)}" if self._known else ""
        self._say(f"{self.done} of {self._files} files, {gigabytes(self._bytes)}{total}, {rate / 1e6:,.0f} MB/s")
