"""Hashes of many files: read in parallel, with progress, and each file once for as long as it stays as it is.

    files ── known to the cache ──────────────────────> digests
        └─── the rest: threads, largest file first ──> cache, digests

What is done is kept, also where a later file cannot be read, the user interrupts, or the process is killed. A file that
changes while it is read is an error: its hash would be that of no file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .digests_cache import DigestCache, Stamp, default_file
from .progress import now

CHUNK = 4 * 2**20
THREADS = 32
"""Files read at once at most: a parallel file system gives one reader a small part of its rate."""
THREADS_PER_CORE = 4
LOOK_S = 0.5
SAVE_S = 10.0
STOPPED = "hashing was stopped"

Result = tuple[Stamp, str | OSError]
Say = Callable[[str], None]


class Digests:
    """The contract's FileDigests. ``stop`` ends what is being read, from any thread: whoever waits for it gets an
    OSError, and so does who asks later."""

    def __init__(self, say: Say | None, cache: DigestCache | None) -> None:
        self._say, self._cache = say, cache
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def __call__(self, files: Sequence[Path], algorithm: str = "sha256") -> dict[Path, str]:
        stamps = {file: _stamp(file) for file in files}
        known = {stamp: self._cache.find(stamp, algorithm) if self._cache else None for stamp in stamps.values()}
        hashlib.new(algorithm, usedforsecurity=False)  # an unknown one is an error here, and not of some thread
        unknown = sorted((stamp for stamp, digest in known.items() if digest is None), key=lambda stamp: -stamp.size)
        found = self._read(_Reading(unknown, algorithm, self._stopped)) if unknown else {}
        return {file: known[stamp] or found[stamp] for file, stamp in stamps.items()}

    def _read(self, reading: _Reading) -> dict[Stamp, str]:
        digests: dict[Stamp, str] = {}
        began, saved, shown = now(), now(), 0
        reading.start(min(THREADS, THREADS_PER_CORE * len(os.sched_getaffinity(0))))
        try:
            while len(digests) < len(reading.stamps):
                digests |= self._kept(reading.results(LOOK_S), reading.algorithm)
                if self._say is not None and reading.read > shown:
                    self._say(reading.words(len(digests), now() - began))
                    shown = reading.read
                if self._cache is not None and now() - saved > SAVE_S:
                    self._cache.save()
                    saved = now()
        finally:
            reading.given_up = True
            if self._cache is not None:
                self._cache.save()
        return digests

    def _kept(self, results: Sequence[Result], algorithm: str) -> dict[Stamp, str]:
        """The hashes among the results, in the cache as well; the first error, if there is one, after that."""
        found = {stamp: result for stamp, result in results if isinstance(result, str)}
        if self._cache is not None:
            for stamp, digest in found.items():
                self._cache.add(stamp, algorithm, digest)
        for _, result in results:
            if isinstance(result, OSError):
                raise result
        return found


def file_digests(say: Say | None = None, *, cached: bool = True, cache_file: Path | None = None) -> Digests:
    """A function that hashes files. ``say`` is told how far it is, about twice a second while it gets on; ``cached``
    False: every file is read; ``cache_file`` None: the one in the user's cache."""
    return Digests(say, DigestCache(cache_file or default_file()) if cached else None)


class _Reading:
    """Files that are being read: how far, and whether to go on. Its threads end with the process, so that one which
    waits for a file system that does not answer holds nobody up."""

    def __init__(self, stamps: Sequence[Stamp], algorithm: str, stopped: threading.Event) -> None:
        self.stamps, self.algorithm = stamps, algorithm
        self.read = 0
        self.given_up = False
        self._stopped = stopped
        self._bytes = sum(stamp.size for stamp in stamps)
        self._lock = threading.Lock()
        self._todo: queue.SimpleQueue[Stamp] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def start(self, threads: int) -> None:
        for stamp in self.stamps:
            self._todo.put(stamp)
        for _ in range(min(threads, len(self.stamps))):
            threading.Thread(target=self._work, daemon=True).start()

    def results(self, timeout_s: float) -> list[Result]:
        """Those that have come since, waiting for the first of them."""
        found: list[Result] = []
        with suppress(queue.Empty):
            found.append(self._done.get(timeout=timeout_s))
            while True:
                found.append(self._done.get_nowait())
        if not found and self._stopped.is_set():
            raise OSError(errno.ECANCELED, STOPPED)
        return found

    def _work(self) -> None:
        with suppress(queue.Empty):
            while stamp := self._todo.get_nowait():
                try:
                    self._done.put((stamp, self.hash(stamp)))
                except OSError as error:
                    self._done.put((stamp, error))

    def hash(self, stamp: Stamp) -> str:
        digest = hashlib.new(self.algorithm, usedforsecurity=False)
        buffer = memoryview(bytearray(max(1, min(CHUNK, stamp.size))))
        with open(stamp.path, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                if self.given_up or self._stopped.is_set():
                    raise OSError(errno.ECANCELED, STOPPED, stamp.path)
                digest.update(buffer[:count])
                with self._lock:
                    self.read += count
            found = os.fstat(file.fileno())
        if (found.st_size, found.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
            raise OSError(errno.EBUSY, "changed while it was hashed; hash it when it is complete", stamp.path)
        return digest.hexdigest()

    def words(self, done: int, seconds: float) -> str:
        rate = self.read / max(seconds, 1e-3)
        left = f", {(self._bytes - self.read) / rate / 60:.0f} min left" if rate else ""
        return (f"hashing: {done} of {len(self.stamps)} files, {self.read / 1e9:.1f} of {self._bytes / 1e9:.1f} GB, "
                f"{rate / 1e9:.2f} GB/s{left}")


def _stamp(file: Path) -> Stamp:
    real = os.path.realpath(file)
    found = os.stat(real)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no file", real)
    return Stamp(real, found.st_size, found.st_mtime_ns)
