"""Text laid out for a terminal: tables of aligned columns, and lines that wrap between words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

_GAP = 2
_NARROWEST = 7


def grid(head: Sequence[str], rows: Sequence[Sequence[str]], align: str, width: int | None = None) -> list[str]:
    """Lines of a table; ``align`` has ``<`` or ``>`` for each column. Where it is wider than ``width``, the widest
    columns that are set to the left lose the middle of their cells."""
    cells = [list(head), *map(list, rows)] if any(head) else list(map(list, rows))
    widths = [max((cell_len(row[index]) for row in cells), default=0) for index in range(len(align))]
    while width is not None and sum(widths) + _GAP * (len(widths) - 1) > width:
        index = max((index for index, side in enumerate(align) if side == "<"), key=widths.__getitem__, default=None)
        if index is None or widths[index] <= _NARROWEST:
            break
        widths[index] -= 1
    lines = ((" " * _GAP).join(_set(cell, room, side) for cell, room, side in zip(row, widths, align)) for row in cells)
    return [line.rstrip() for line in lines]


def shortened(text: str, room: int) -> str:
    """At most ``room`` columns of a text: its beginning and its end."""
    if cell_len(text) <= room:
        return text
    head = max(1, (room - 1) * 2 // 3)
    tail = room - 1 - head
    end = text[len(text) - tail:] if tail > 0 else ""
    while cell_len(end) > tail:
        end = end[1:]
    return f"{set_cell_size(text, head)}…{end}"


def wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Lines of at most ``width`` columns, broken between words; those after the first are indented. Only a word that
    is longer than a line by itself is longer than that."""
    lines: list[str] = []
    line = text[:len(text) - len(text.lstrip())]
    for word in text.split():
        if line.strip() and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = " " * indent + word
        else:
            line = f"{line} {word}" if line.strip() else line + word
    return [*lines, line]


def _set(cell: str, room: int, side: str) -> str:
    cell = shortened(cell, room)
    fill = " " * (room - cell_len(cell))
    return cell + fill if side == "<" else fill + cell
