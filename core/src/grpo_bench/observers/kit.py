"""What pages of other distributions are made of, so that they look like the report: its frame and style sheet, its
pieces of SVG, its tables and its words."""

from __future__ import annotations

from ._document import document, style, write_whole
from ._svg import Frame, axes, drawing, line, path, scale, tag, text, ticks
from ._tables import Cell, swatch, table
from ._text import counted, duration, name, number

__all__ = [
    "Cell", "Frame", "axes", "counted", "document", "drawing", "duration", "line", "name", "number", "path", "scale",
    "style", "swatch", "table", "tag", "text", "ticks", "write_whole",
]
