"""References to a site file: a profile's value ``"site:artifacts.train_data"`` means what that file says there.

A reference is a whole value, wherever in the profile it stands, items of lists included. Text with a blank in it is
text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .lines import Key

PREFIX = "site:"
_REFERENCE = re.compile(rf"{PREFIX}(\S*)")


def reference(value: Any) -> str | None:
    """The site file's key that ``value`` stands for; None where it is a value of its own."""
    found = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found else None


def references(value: Any, path: Key = ()) -> Iterator[tuple[Key, str]]:
    """Every reference inside ``value``: where it stands, and the key it names."""
    if (key := reference(value)) is not None:
        yield path, key
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for part, inner in items:
        yield from references(inner, (*path, part))
