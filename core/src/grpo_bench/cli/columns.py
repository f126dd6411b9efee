"""Plain text on stdout, for listings that must not wait for a rendering library."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

WIDTH = 100
"""Columns of a page where stdout is no terminal."""
NARROWEST = 40


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as left-aligned columns, two blanks apart."""
    if not rows:
        return ""
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def width() -> int | None:
    """Columns of the terminal; None where stdout is none and ``COLUMNS`` does not say."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    given = os.environ.get("COLUMNS", "")
    return int(given) if given.isascii() and given.isdigit() and 0 < int(given) < 10_000 else None


def page_width() -> int:
    """Columns of what is laid out as a page wherever it goes."""
    return max(NARROWEST, width() or WIDTH)


def wrapped(text: str, room: int | None, indent: int) -> list[str]:
    """A line of at most ``room`` columns, those after it indented; whole where there is no end of room. A word that is
    longer than a line stays whole."""
    if room is None:
        return [text]
    return textwrap.wrap(text, max(NARROWEST, room), subsequent_indent=" " * indent, break_long_words=False,
                         break_on_hyphens=False)


def say(*lines: str) -> None:
    """Print lines; what the encoding of stdout has no sign for becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(lines).encode(encoding, "replace").decode(encoding))


def tell(*texts: str, indent: int) -> None:
    """Print texts in lines no wider than the terminal, and whole where stdout is none."""
    room = width()
    say(*(part for text in texts for line in text.splitlines()
          for part in wrapped(line, room, max(indent, len(line) - len(line.lstrip()) + 2))))
