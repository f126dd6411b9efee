"""What pages of other distributions are made of, so that they look like the report: its pieces of SVG, its tables, its
words and its style sheet."""

from __future__ import annotations

from importlib.resources import files

from ..contract import Phase
from ._svg import Frame, axes, drawing, line, path, scale, tag, text, ticks
from ._tables import Cell, swatch, table
from ._text import counted, duration, name, number

__all__ = [
    "Cell", "Frame", "axes", "counted", "drawing", "duration", "line", "name", "number", "path", "scale", "style",
    "swatch", "table", "tag", "text", "ticks",
]


def style() -> str:
    """The report's style sheet, with the colours of the phases."""
    sheet = files(__package__ or "").joinpath("report.css").read_text(encoding="utf-8")
    return sheet + "".join(f"rect.p-{phase}{{fill:var(--{phase})}}.swatch.p-{phase}{{background:var(--{phase})}}"
                           for phase in Phase)
