"""A run folder as its reader sees it: figures, text, and the files made anew from the journal."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

from ..contract import RunFolderError
from . import _plain
from ._record import plain, record
from ._schema import read_run
from ._view import RunView
from .journal import EVALUATION
from .journal import FILE as JOURNAL
from .report import FILE as REPORT
from .report import save_report
from .trace import FILE as TRACE
from .trace import write_trace


def view_of(folder: Path) -> RunView:
    """What a run folder's journals say; RunFolderError where they cannot be read or no run has started."""
    view = RunView(read_run(folder))
    if not view.started:
        raise RunFolderError(f"{folder} holds no run that has started", hint="its events.jsonl is empty")
    view.going_on = any(map(_is_locked, filter(Path.is_file, (folder / JOURNAL, folder / EVALUATION / JOURNAL))))
    return view


def _is_locked(journal: Path) -> bool:
    """Whether the process that writes the journal still holds it."""
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # a file system without locks
    return False


class Overview:
    """What the journals of ``folder`` say; ``record`` is plain data. RunFolderError where they cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = folder / REPORT
        self.trace = folder / TRACE
        self._view = view_of(folder)
        self.record = plain(record(self._view))

    def lines(self, width: int | None) -> Iterator[str]:
        """The report as text, for ``width`` columns; None: as wide as it gets."""
        return _plain.lines(self.record, width)

    def write(self) -> None:
        """Write ``report.html`` and ``trace.json`` anew; GrpoBenchError where they cannot be."""
        save_report(self._view, self.folder)
        write_trace(self.folder, read_run(self.folder))
