"""The engine's log: JSON lines in the run's ``engine.log``, to which every attempt appends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from ..contract import RunFolderError


class Log:
    """Lines that the disk refuses are lost: that is no reason to end a run."""

    def __init__(self, path: Path) -> None:
        try:
            self._stream = open(path, "a", buffering=1, opener=_without_waiting)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise RunFolderError(f"cannot open {path}: {error.strerror}",
                                 hint="the run folder must be writable") from error

    def write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        with suppress(OSError):
            self._stream.close()


def logger(stream: Any, clock: Any) -> Any:
    """A logger that writes to ``stream``."""

    def stamp(_logger: Any, _method: str, event: Any) -> Any:
        return {"at": clock.now_utc(), **event}

    return structlog.wrap_logger(
        structlog.WriteLogger(stream),
        processors=[structlog.processors.add_log_level, stamp, structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer()],
        wrapper_class=structlog.BoundLogger)


def _without_waiting(path: str, flags: int) -> int:
    """A pipe without a reader is refused instead of waited for."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
