"""Getting one file: resumed where an earlier attempt ended, tried again where a connection breaks, whole or not there.

A file is written as ``NAME.part`` and renamed once its MD5 is the manifest's. A ``.part`` that is there is hashed and
gone on with, by HTTP's Range; a server that sends everything again is let do so. Failures that pass are tried again for
as long as each attempt gets further, and a few times where it does not; a file that is not there, or a disk that is
full, ends it at once. What was written stays.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import http.client
import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler, HTTPErrorProcessor, HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector,
    ProxyHandler, Request, UnknownHandler, url2pathname,
)

from grpo_bench.contract import GrpoBenchError

CHUNK = 2**20
PART = ".part"
EARLY = "the connection ended early"
ATTEMPTS = 6
"""Failures in a row, none of which got any further, after which a file is given up."""
TIMEOUT_S = 60.0
DELAY_S, LONGEST_S = 1.0, 60.0
"""Seconds before the first further attempt, doubled up to the longest."""
_PASSING = frozenset({408, 425, 429})


class FetchError(GrpoBenchError):
    """A file cannot be fetched."""


class Hopeless(FetchError):
    """Nor can any other file."""


class Stopped(Exception):
    """Somebody wants the transfer to end."""


class _Passing(Exception):
    """A failure that may be over the next time."""


@dataclass(frozen=True)
class Reply:
    """Content of a URI from byte ``start`` on; ``end`` is its whole size, None where the server does not say."""

    stream: BinaryIO | http.client.HTTPResponse
    start: int
    end: int | None


def read_small(uri: str, most: int, *, delay_s: float = DELAY_S) -> bytes:
    """A small document, tried again as files are."""
    delays = _delays(delay_s)
    while True:
        try:
            with _opened(uri, 0) as reply:
                content = reply.stream.read(most + 1)
                if len(content) > most:
                    raise FetchError(f"{uri}: is larger than {most:,} bytes", hint="is it a metadata URI?")
                if reply.end in (None, len(content)):
                    return content
                reason = EARLY
        except _Passing as error:
            reason = str(error)
        _wait(delays, threading.Event(), f"{uri}: {reason}")


def size_of(uri: str) -> int | None:
    """How large a file is, by what its server says without sending it; None where it does not say."""
    if urlsplit(uri).scheme == "file":
        with _opened(uri, 0) as reply:
            return reply.end
    try:
        with _open(uri, {}, "HEAD") as response:
            return _number(response.headers.get("Content-Length"))
    except (HTTPError, OSError, http.client.HTTPException):
        return None


class Transfer:
    """One file on its way from ``uri`` to ``target``; ``count`` is told of bytes as they come, and of bytes that have
    to come again as fewer."""

    def __init__(self, uri: str, target: Path, md5: str, *, stop: threading.Event, count: Callable[[int], None],
                 delay_s: float = DELAY_S) -> None:
        self._uri, self._target, self._wanted = uri, target, md5
        self._stop, self._count, self._delay_s = stop, count, delay_s
        self._part = target.with_name(target.name + PART)
        self._digest = hashlib.md5(usedforsecurity=False)
        self._have = 0

    def run(self) -> None:
        """Get it; FetchError where that cannot be done, Stopped where it should not be."""
        with self._held() as file:
            self._take_up(file)
            self._get(file)
            if self._digest.hexdigest() != self._wanted:
                self._restart(file)
                self._get(file)
            if (found := self._digest.hexdigest()) != self._wanted:
                self._restart(file)
                raise FetchError(f"{self._uri}: has MD5 {found} and should have {self._wanted}, twice",
                                 hint="the manifest or the file is not what was published; nothing was kept of it")
            with _writing(self._part):
                file.flush()
                os.fsync(file.fileno())
                os.replace(self._part, self._target)

    @contextmanager
    def _held(self) -> Iterator[io.BufferedRandom]:
        """The unfinished file, which no other process may write at the same time."""
        with _writing(self._part):
            handle = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(handle, "r+b") as file:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FetchError(f"{self._part}: another process is fetching it", hint="wait for it") from None
            yield file

    def _take_up(self, file: io.BufferedRandom) -> None:
        while chunk := file.read(CHUNK):
            self._add(chunk)

    def _restart(self, file: io.BufferedRandom) -> None:
        self._count(-self._have)
        self._digest, self._have = hashlib.md5(usedforsecurity=False), 0
        with _writing(self._part):
            file.seek(0)
            file.truncate()

    def _add(self, chunk: bytes) -> None:
        if self._stop.is_set():
            raise Stopped
        self._digest.update(chunk)
        self._have += len(chunk)
        self._count(len(chunk))

    def _get(self, file: io.BufferedRandom) -> None:
        """Fetch what is not there yet."""
        delays = _delays(self._delay_s)
        while True:
            before = self._have
            try:
                if self._attempt(file):
                    return
                reason = EARLY
            except _Passing as error:
                reason = str(error)
            if self._have > before:
                delays = _delays(self._delay_s)
            _wait(delays, self._stop, f"{self._uri}: {reason}")

    def _attempt(self, file: io.BufferedRandom) -> bool:
        """Read as far as one connection goes; whether that is the end."""
        with _opened(self._uri, self._have) as reply:
            if reply.start != self._have:
                self._restart(file)
            while chunk := reply.stream.read(CHUNK):
                with _writing(self._part):
                    file.write(chunk)
                self._add(chunk)
            return reply.end is None or self._have == reply.end


def _delays(first: float) -> Iterator[float]:
    return iter([min(first * 2**number, LONGEST_S) for number in range(ATTEMPTS - 1)])


def _wait(delays: Iterator[float], stop: threading.Event, what: str) -> None:
    """Let some time pass before the next attempt, if there is to be one."""
    delay = next(delays, None)
    if delay is None:
        raise FetchError(f"{what}, {ATTEMPTS} times in a row", hint="fetch again later; what came is kept")
    if stop.wait(delay):
        raise Stopped


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Hopeless(f"cannot write {path}: {error.strerror}",
                           hint="make room and fetch again; what came is kept") from None
        raise FetchError(f"cannot write {path}: {error.strerror}") from None


@contextmanager
def _opened(uri: str, start: int) -> Iterator[Reply]:
    """The content of ``uri`` from ``start``, or from 0 where a server knows no ranges."""
    try:
        if urlsplit(uri).scheme == "file":
            with open(_local(uri), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                begin = file.seek(start if start <= size else 0)
                yield Reply(file, begin, size)
            return
        with _open(uri, {"Range": f"bytes={start}-"} if start else {}, "GET") as response:
            yield _reply(response, start)
    except HTTPError as error:
        with error:
            size = _number(error.headers.get("Content-Range", "").rpartition("/")[2])
            if error.code == 416 and start:
                yield Reply(io.BytesIO(), start if size in (start, None) else 0, size)
                return
            if error.code in _PASSING or error.code >= 500:
                raise _Passing(f"the server answered {error.code} {error.reason}") from None
            raise FetchError(f"{uri}: the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        if urlsplit(uri).scheme == "file":
            raise FetchError(f"{uri}: {error}") from None
        raise _Passing(str(error) or type(error).__name__) from None


def _reply(response: http.client.HTTPResponse, start: int) -> Reply:
    length = _number(response.headers.get("Content-Length"))
    said = response.headers.get("Content-Range", "")
    begin = _number(said.removeprefix("bytes ").partition("-")[0]) if response.status == 206 else 0
    if begin not in (0, start):
        raise _Passing(f"the server answered with {said!r:.60} where byte {start} was asked for")
    return Reply(response, begin, None if length is None else begin + length)


def _open(uri: str, headers: dict[str, str], method: str) -> http.client.HTTPResponse:
    opener = OpenerDirector()
    for handler in (ProxyHandler, HTTPHandler, HTTPSHandler, HTTPRedirectHandler, HTTPDefaultErrorHandler,
                    HTTPErrorProcessor, UnknownHandler):
        opener.add_handler(handler())
    request = Request(uri, headers={"User-Agent": "grpo-bench", "Accept-Encoding": "identity", **headers},
                      method=method)
    return opener.open(request, timeout=TIMEOUT_S)


def _local(uri: str) -> str:
    address = urlsplit(uri)
    if address.netloc not in ("", "localhost"):
        raise FetchError(f"{uri}: a file is of this machine, so there are three slashes", hint="as in file:///data")
    return url2pathname(address.path)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None
