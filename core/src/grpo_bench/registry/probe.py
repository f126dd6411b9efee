"""Doing something in a copy of this process that may crash, hang or exit.

The copy is a fork: it starts at once, with everything imported so far. It has no terminal, its output goes nowhere, and
whatever it started is killed with it.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

NOTICE_S = 5.0
"""Seconds after which somebody who waits is told for what."""
_LOOK_S = 0.05
_END = "."
"""The last line of work that came to its end."""


Say = Callable[[str], None]


@dataclass(frozen=True)
class Probed:
    """The lines that the work said. ``fate`` is empty where it came to its end; else what became of it, in words."""

    lines: tuple[str, ...]
    fate: str = ""


def probe(work: Callable[[Say], None], timeout_s: float, notice: Callable[[int], str] | None = None) -> Probed:
    """Do ``work`` in a copy; it gets a function to say lines with, and has ``timeout_s`` seconds for each. What
    ``notice`` makes of the number of lines so far is printed to stderr where the next one takes long."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the copy runs this one alone
        copy = os.fork()
    if not copy:
        _be_the_copy(work, writing)
    os.close(writing)
    said, status = b"", None
    try:
        said, in_time = _listen(copy, reading, timeout_s, notice)
        status = _end(copy) if in_time else None
    finally:
        os.close(reading)
        if status is None:
            _kill(copy)
            _end(copy)
    lines = said.decode().split("\n")[:-1]
    if lines and lines[-1] == _END:
        return Probed(tuple(lines[:-1]))
    return Probed(tuple(lines), f"did not come to an end within {timeout_s:g} s" if status is None else _how(status))


def _be_the_copy(work: Callable[[Say], None], writing: int) -> NoReturn:
    def say(line: str) -> None:
        os.write(writing, f"{line}\n".encode())

    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        work(say)
        say(_END)
    finally:
        os._exit(0)


def _listen(copy: int, reading: int, timeout_s: float, notice: Callable[[int], str] | None) -> tuple[bytes, bool]:
    """What the copy said until it ended or hung, and whether it came to its end in time. Something that it started may
    keep the pipe open after its end."""
    said, silent_s = b"", 0.0
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while not said.endswith(f"\n{_END}\n".encode()):
        if poll.poll(_LOOK_S * 1000):
            if not (data := os.read(reading, 65536)):
                break
            said, silent_s = said + data, 0.0
        elif os.waitid(os.P_PID, copy, os.WEXITED | os.WNOHANG | os.WNOWAIT) and not poll.poll(0):
            break
        elif silent_s >= timeout_s:
            return said, False
        else:
            if notice is not None and silent_s < NOTICE_S <= silent_s + _LOOK_S:
                print(notice(said.count(b"\n")), file=sys.stderr, flush=True)
            silent_s += _LOOK_S
    return said, True


def _end(copy: int) -> int:
    """Wait for the copy and kill what it left; its exit code, negative for a signal."""
    os.waitid(os.P_PID, copy, os.WEXITED | os.WNOWAIT)  # it keeps its number until it is reaped
    _kill(copy)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


def _kill(copy: int) -> None:
    for kill in (os.killpg, os.kill):
        try:
            kill(copy, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _how(status: int) -> str:
    if status >= 0:
        return f"ended the process with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
