"""Small pieces of SVG: escaping, elements, scales, ticks. Colours and fonts come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Frame:
    """A drawing's size and the margins around its plot, in pixels."""

    width: int
    height: int
    left: int = 40
    right: int = 12
    top: int = 12
    bottom: int = 34

    @property
    def x(self) -> tuple[float, float]:
        return self.left, self.width - self.right

    @property
    def y(self) -> tuple[float, float]:
        return self.height - self.bottom, self.top


def scale(domain: tuple[float, float], pixels: tuple[float, float]) -> Scale:
    """The linear map of ``domain`` onto ``pixels``."""
    (low, high), (start, end) = domain, pixels
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers that divide ``low`` to ``high`` into about so many parts."""
    span = (high - low) or 1.0
    power = 10.0 ** math.floor(math.log10(span / max(1, about)))
    width = next((power * m for m in (1, 2, 5, 10) if span / (power * m) <= about), power * 10)
    first = math.ceil(low / width - 1e-9)
    return [round(i * width, 10) + 0.0 for i in range(first, math.floor(high / width + 1e-9) + 1)]


def tag(element: str, content: str = "", /, **attributes: object) -> str:
    """One element. ``class_`` writes class, underscores become hyphens, floats get one decimal."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    text = "".join(f' {key}="{escape(_plain(value))}"' for key, value in given.items())
    return f"<{element}{text}>{content}</{element}>" if content else f"<{element}{text}/>"


def text(x: float, y: float, content: str, class_: str, anchor: str | None = None) -> str:
    return tag("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str, close: bool = False) -> str:
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return tag("path", d=steps + ("Z" if close else ""), class_=class_)


def axes(frame: Frame, x_ticks: Sequence[tuple[float, str]], y_ticks: Sequence[tuple[float, str]], x_title: str,
         y_title: str) -> str:
    """Grid lines and labels; ticks are (pixel, label)."""
    (left, right), (bottom, top) = frame.x, frame.y
    parts = [line(left, y, right, y, "grid") + text(left - 8, y + 4, label, "tick", "end") for y, label in y_ticks]
    parts += [text(x, bottom + 17, label, "tick", "middle") for x, label in x_ticks]
    parts += [line(left, bottom, right, bottom, "axis"), text(right, bottom + 32, x_title, "tick", "end")]
    parts += [text(0, top - 12, y_title, "tick")] if y_title else []
    return "".join(parts)


def drawing(frame: Frame, title: str, content: str, class_: str) -> str:
    """The finished picture; ``title`` is what a screen reader says."""
    return (f'<svg class="{class_}" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{escape(title)}">'
            f"{content}</svg>")


def _plain(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
