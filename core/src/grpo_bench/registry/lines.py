"""Which line of a TOML text each key stands on.

``tomllib`` gives values without places, so a second, much smaller reader goes over the same text. It runs only on text
that ``tomllib`` has accepted, hence it checks nothing: it walks headers, keys and values and notes where they begin.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect
from collections.abc import Mapping

Key = tuple[str | int, ...]

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_KEY = re.compile(rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*")
_BLANK = re.compile(r"(?:[\s,]|#[^\n]*)*")
_STRING = re.compile(
    r'''"""(?:\\.|(?!""")[^\\])*"{3,5}|\'\'\'(?:(?!\'\'\').)*'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*\'''', re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")
MAX_PARTS = 64
"""Parts of a dotted key. ``tomllib`` takes time with the square of their number, minutes for some 10,000."""
_ENDLESS = re.compile(rf"(?<![A-Za-z0-9_.-])(?:{_PART}[ \t]*\.[ \t]*){{{MAX_PARTS}}}")


def line_index(text: str) -> Mapping[Key, int]:
    """Line (from 1) of every table, key and array item in ``text``, by its path."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


def line_of_endless_key(text: str) -> int | None:
    """The first line with a key of more than ``MAX_PARTS`` parts, in text that may be no TOML at all."""
    found = _ENDLESS.search(text)
    return text.count("\n", 0, found.start()) + 1 if found else None


def line_of(lines: Mapping[Key, int], path: Key) -> int | None:
    """Line of ``path``, or of the nearest table around it."""
    return next((lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in lines), None)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.newlines = [found.start() for found in re.finditer("\n", text)]
        self.lines: dict[Key, int] = {}
        self.items: dict[Key, int] = {}

    def document(self) -> None:
        table: Key = ()
        while self._skip(_BLANK) is not None and self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Key:
        many = self.text.startswith("[[", self.at)
        start = self.at
        self.at += 2 if many else 1
        parts = self._key()
        self.at = self.text.index("]", self.at) + (2 if many else 1)
        path: Key = ()
        for number, part in enumerate(parts):
            path += (part,)
            if many and number == len(parts) - 1:
                self.items[path] = self.items.get(path, -1) + 1
            if path in self.items:
                self._note(path, start)
                path += (self.items[path],)
            self._note(path, start)
        return path

    def _pair(self, table: Key) -> None:
        start = self.at
        path = table
        for part in self._key():
            path += (part,)
            self._note(path, start)
        self.at = self.text.index("=", self.at) + 1
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        self._skip(_BLANK)
        node = tomllib.loads(f"{self._skip(_KEY)} = 0")
        parts: list[str] = []
        while isinstance(node, dict):
            (part, node), = node.items()
            parts.append(part)
        return tuple(parts)

    def _value(self, path: Key) -> None:
        self._skip(_BLANK)
        self._note(path, self.at)
        opening = self.text[self.at]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        elif self._skip(_STRING) is None:
            self._skip(_SCALAR)

    def _array(self, path: Key) -> None:
        self.at += 1
        number = 0
        while self._skip(_BLANK) is not None and self.text[self.at] != "]":
            self._value((*path, number))
            number += 1
        self.at += 1

    def _inline_table(self, path: Key) -> None:
        self.at += 1
        while self._skip(_BLANK) is not None and self.text[self.at] != "}":
            self._pair(path)
        self.at += 1

    def _skip(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def _note(self, path: Key, at: int) -> None:
        if path not in self.lines:
            self.lines[path] = bisect(self.newlines, at) + 1
