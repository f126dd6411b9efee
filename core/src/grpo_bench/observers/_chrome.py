"""A file in the Chrome trace event format, written bar by bar.

The file is one JSON array with an event a line. Times are seconds to the caller; in the file they are microseconds with
three decimals, rounded to nanoseconds first, so that bars which touch still touch. Until it is whole, the file has
another name.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract import GrpoBenchError

_AT_ONCE = 2**18
"""Characters that are written together."""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class ChromeTrace:
    """The file at ``path``, called ``<path>.<draft>`` until :meth:`finish`. GrpoBenchError where it cannot be written.
    Processes and tracks are numbers with names; bars of one track must nest."""

    def __init__(self, path: Path, draft: str) -> None:
        self.path = path
        self._draft = path.with_name(f"{path.name}.{draft}")
        self._pending = ["["]
        self._size = 0
        self._between = "\n"
        self._write_out("w")

    def name(self, title: str, process: int, track: int | None = None) -> None:
        """Name a process, or one of its tracks. They are shown in the order of their numbers."""
        kind = "process" if track is None else "thread"
        place = {"pid": process, "tid": track or 0}
        for what, value in (("name", title), ("sort_index", track or process)):
            self._add(_encode({"ph": "M", "name": f"{kind}_{what}", **place, "args": {what: value}}))

    def bar(self, title: str, process: int, track: int, start_s: float, end_s: float,
            args: Mapping[str, Any] | None = None, category: str = "") -> None:
        start = _nanoseconds(start_s)
        about = (f',"cat":"{category}"' if category else "") + (f',"args":{_encode(_sayable(args))}' if args else "")
        self._add(f'{{"ph":"X","name":{_encode(title)},"pid":{process},"tid":{track},"ts":{start / 1e3},'
                  f'"dur":{(_nanoseconds(end_s) - start) / 1e3}{about}}}')

    def mark(self, title: str, process: int, track: int, at_s: float) -> None:
        """An instant, drawn across all tracks."""
        self._add(_encode({"ph": "i", "name": title, "pid": process, "tid": track, "ts": _nanoseconds(at_s) / 1e3,
                           "s": "g"}))

    def count(self, title: str, process: int, at_s: float, value: float) -> None:
        """The value of a curve from here on."""
        self._add(_encode({"ph": "C", "name": title, "pid": process, "tid": 0, "ts": _nanoseconds(at_s) / 1e3,
                           "args": {"value": value}}))

    def flush(self) -> None:
        """Write what was held back; what is there can be opened, though the closing bracket is missing."""
        self._write_out("a")

    def finish(self) -> None:
        self._pending.append("\n]\n")
        self._write_out("a")
        os.replace(self._draft, self.path)

    def _add(self, event: str) -> None:
        self._pending += (self._between, event)
        self._between = ",\n"
        self._size += len(event)
        if self._size > _AT_ONCE:
            self._write_out("a")

    def _write_out(self, mode: str) -> None:
        try:
            with self._draft.open(mode, encoding="utf-8") as file:
                file.writelines(self._pending)
        except OSError as error:
            raise GrpoBenchError(f"cannot write {self._draft}: {error.strerror}",
                                 hint="make room or restore access") from error
        self._pending, self._size = [], 0


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _sayable(args: Mapping[str, Any]) -> dict[str, Any]:
    """Without figures that JSON has no word for."""
    return {key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in args.items()}
