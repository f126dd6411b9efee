"""Plain text on stdout, for listings that must not wait for a rendering library."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence


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


def say(*lines: str) -> None:
    """Print lines; what the encoding of stdout has no sign for becomes a question mark."""
    encoding = sys.stdout.encoding or "utf-8"
    print("\n".join(lines).encode(encoding, "replace").decode(encoding))
