"""A page that needs nothing else: its frame, its style sheets inside it, and its file, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from ..contract import GrpoBenchError, Phase


def document(title: str, css: str, parts: Sequence[str]) -> str:
    """The whole of it; ``title`` is text, ``parts`` are HTML."""
    return "\n".join([
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">', f"<title>{escape(title)}</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">', f"<style>{css}</style>", "</head>",
        "<body>", "<main>", *parts, "</main>", "</body>", "</html>", ""])


def style(*more: str) -> str:
    """The report's style sheet and ``more`` of this package's, with the colours of the phases."""
    sheets = (files(__package__ or "").joinpath(name).read_text(encoding="utf-8") for name in ("report.css", *more))
    return "".join([*sheets, *(f"rect.p-{phase}{{fill:var(--{phase})}}.swatch.p-{phase}{{background:var(--{phase})}}"
                               for phase in Phase)])


def write_whole(path: Path, text: str) -> Path:
    """Write a file whole or not at all, and return its path; GrpoBenchError where that cannot be."""
    draft = path.with_suffix(".tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        raise GrpoBenchError(f"cannot write {path}: {error.strerror}", hint="make room or restore access") from error
    return path
