"""How keys and names are written in messages."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dotted(path: Iterable[str | int]) -> str:
    """A path as one types it: ``a.b[0]."odd key"``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else json.dumps(part))
    return text


def choices(name: str, known: Iterable[str]) -> str:
    """The tail of a message on an unknown ``name``: the nearest match and what there is."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"{guess} (there is: {', '.join(names) if names else 'nothing'})"
