"""How keys and names are written in messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONG = 200
"""Characters of a name above which a message shows its beginning only."""


def dotted(path: Iterable[str | int]) -> str:
    """A path as one types it: ``a.b[0]."odd key"``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + shown(part)
    return text


def shown(name: str) -> str:
    """A name as it can stand in one line of a message: an odd one in quotes, with escapes, a very long one cut."""
    name = name if len(name) <= _LONG else f"{name[:_LONG]}..."
    return name if _BARE.fullmatch(name) else json.dumps(name)


def choices(name: str, known: Iterable[str]) -> str:
    """The tail of a message on an unknown ``name``: the nearest match and what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"{guess} (there is: {', '.join(names) if names else 'nothing'})"
