"""Plugins that a registry file switches off: ``disabled = ["environment:acme"]`` at its top.

Every layer adds to the list. A profile that names such a plugin is an error; nothing else changes. Listings read the
files leniently and import nothing for it: whether a file is valid is for whoever uses a profile to say.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .installed import ROLES
from .lines import line_of_endless_key
from .places import FILE_NAME, MAX_BYTES, packaged_file, user_file

KEY = "disabled"


def misfit(value: Any) -> tuple[tuple[Any, ...], str] | None:
    """Where and why the value of the key ``disabled`` is wrong; None where it is right."""
    if not isinstance(value, list):
        return (KEY,), 'should be a list, as in ["environment:acme"]'
    for number, item in enumerate(value):
        role, colon, name = item.partition(":") if isinstance(item, str) else ("", "", "")
        if role not in ROLES or not colon or not name:
            return (KEY, number), f'should have the form "role:name", got {item!r:.60} (roles: {", ".join(ROLES)})'
    return None


def disabled_plugins() -> dict[str, str]:
    """What is switched off, as ``role:name``, each with the file that says so. Unreadable files say nothing."""
    found: dict[str, str] = {}
    for file in (packaged_file(), user_file(), Path(FILE_NAME)):
        found.update(dict.fromkeys(_listed(file), str(file)))
    return found


def _listed(file: Path) -> Iterable[str]:
    try:
        text = file.read_text("utf-8-sig") if file.is_file() and file.stat().st_size <= MAX_BYTES else ""
        value = [] if line_of_endless_key(text) else tomllib.loads(text).get(KEY, [])
    except (OSError, ValueError, RecursionError):
        return ()
    return () if misfit(value) else value
