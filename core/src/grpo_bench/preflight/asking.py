"""Asking somebody for findings who may take long, hang or fail.

The question runs in a thread of its own. What it finds and what it says of its progress come as they are made; whoever
is silent for too long is left behind, and what it was reading is stopped. Whatever it raises becomes a finding.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from ..contract import FileDigests, Finding, GrpoBenchError
from .digests import Digests, Say
from .digests_cache import DigestCache

SILENT_S = 600.0
"""Seconds without a finding or a word after which somebody is taken to hang."""
_LEAVE_S = 5.0
"""Seconds that somebody who is stopped has to keep what was done."""

Question = Callable[[FileDigests, Say], Iterable[Finding]]
_END = object()


def ask(question: Question, say: Say, cache: DigestCache | None, silent_s: float = SILENT_S) -> Iterator[Finding]:
    """What the question finds, as it finds it; ``say`` is told of progress in between, by this thread."""
    heard: queue.SimpleQueue[object] = queue.SimpleQueue()
    digests = Digests(heard.put, cache)
    thread = threading.Thread(target=_answer, args=(question, digests, heard.put), daemon=True)
    thread.start()
    try:
        while (item := _next(heard, silent_s)) is not _END:
            if isinstance(item, Finding):
                yield item
            elif isinstance(item, str):
                say(item)
            else:
                yield Finding("asked", False, f"answered with a {type(item).__name__}, which is no Finding",
                              fix="an error of that plugin")
    finally:
        digests.stop()
        thread.join(_LEAVE_S)


def _next(heard: queue.SimpleQueue[object], silent_s: float) -> object:
    try:
        return heard.get(timeout=silent_s)
    except queue.Empty:
        heard.put(_END)
        return Finding("asked", False, f"did not answer within {silent_s:g} s", unknown=True,
                       why="what it would have found is not known",
                       fix="is a file system stuck that it reads from?")


def _answer(question: Question, digests: Digests, put: Callable[[object], None]) -> None:
    try:
        for finding in question(digests, put):
            put(finding)
    except GrpoBenchError as error:
        put(Finding("asked", False, f"cannot be asked: {error.message}", fix=error.hint))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        put(Finding("asked", False, f"cannot be asked: {place}{error.strerror or error}"))
    except BaseException as error:  # one that exits must not pass for one that found nothing
        put(Finding("asked", False, f"cannot be asked: {_shown(error)}", fix="an error of that plugin"))
    finally:
        put(_END)


def _shown(error: BaseException) -> str:
    """The error with the line that raised it."""
    last, trace = "", error.__traceback__
    while trace is not None:
        last, trace = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})", trace.tb_next
    return f"{type(error).__name__}: {error}{last}"
