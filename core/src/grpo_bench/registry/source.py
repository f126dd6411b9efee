"""Registry files: where they are, what they hold, what makes one unreadable.

A file is either wholly readable or an error that names file and line. Whether a profile in it makes sense is decided
later, and only for the profile that is asked for.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import RegistryError
from .disabled import KEY as DISABLED, misfit
from .lines import MAX_PARTS, Key, line_index, line_of, line_of_endless_key
from .names import choices, dotted
from .places import FILE_NAME, MAX_BYTES, packaged_file, user_file

SCHEMA = 1
EXTENDS = "extends"
KEYS = ("schema", DISABLED, "profiles")
MAX_DEPTH = 16
"""Levels of nesting in a registry file; a profile needs five."""

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DIGITS = re.compile(r"[0-9_]{4301,}")
_DECODE_ERROR = re.compile(r"(?P<what>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """A registry file as read. ``layer`` is ``packaged``, ``user`` or ``local``; ``lines`` says where keys stand;
    ``disabled`` are the plugins that it switches off, as ``role:name``."""

    layer: str
    file: Path
    profiles: Mapping[str, Mapping[str, Any]]
    lines: Mapping[Key, int]
    disabled: tuple[str, ...] = ()


def read_sources(registry: Path | None = None, *, cwd: Path | None = None) -> tuple[Source, ...]:
    """All registry files that apply, lowest layer first. ``registry`` replaces the working directory's file and must
    exist; the user's and the working directory's may be absent. A file that is two layers at once is the lower one."""
    packaged, user, local = packaged_file(), user_file(), registry or (cwd or _working_folder()) / FILE_NAME
    sources = [read_source(packaged, "packaged")]
    for layer, file, required in (("user", user, False), ("local", local, registry is not None)):
        known = any(_same(file, source.file) for source in sources)
        if not known and (required or os.path.lexists(file)):
            sources.append(read_source(file, layer))
    return tuple(sources)


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise RegistryError(f"the working directory cannot be read: {error.strerror}",
                            hint="change to one that exists") from None


def read_source(file: Path, layer: str) -> Source:
    """Parse one registry file, or raise a RegistryError with file and line."""
    data, lines = read_toml(file, hint="see --registry")
    if unknown := sorted(data.keys() - KEYS):
        raise error_at(file, lines, (unknown[0],), "unknown key" + choices(unknown[0], KEYS))
    schema = data.get("schema", SCHEMA)
    if type(schema) is not int or schema < 1:
        raise error_at(file, lines, ("schema",), f"should be {SCHEMA}, got {schema!r}")
    if schema > SCHEMA:
        message = f"this file is of schema {schema}, this grpo-bench reads up to {SCHEMA}"
        raise error_at(file, lines, ("schema",), message, hint="upgrade grpo-bench")
    profiles = data.get("profiles", {})
    if not isinstance(profiles, dict):
        raise error_at(file, lines, ("profiles",), "should be a table of profiles, as in [profiles.my]")
    for name, profile in profiles.items():
        if not _PROFILE_NAME.fullmatch(name):
            message = "a profile's name is made of letters, digits, '.', '_' and '-'"
            raise error_at(file, lines, ("profiles", name), message)
        if not isinstance(profile, dict):
            raise error_at(file, lines, ("profiles", name), f"should be a table, got {profile!r:.60}")
    disabled = data.get(DISABLED, [])
    if found := misfit(disabled):
        raise error_at(file, lines, *found)
    return Source(layer=layer, file=file, profiles=profiles, lines=lines, disabled=tuple(disabled))


def read_toml(file: Path, *, hint: str) -> tuple[dict[str, Any], Mapping[Key, int]]:
    """The tables of a file a person wrote, and where its keys stand; ``hint`` is for a file that cannot be read."""
    data, lines = _parse(_read_text(file, hint), file)
    if found := fault(data):
        raise error_at(file, lines, *found)
    return data, lines


def error_at(file: Path, lines: Mapping[Key, int], path: Key, message: str, *, hint: str = "") -> RegistryError:
    """A RegistryError on the key at ``path`` of ``file``."""
    line = line_of(lines, path)
    place = f"{file}:{line}" if line is not None else str(file)
    return RegistryError(f"{dotted(path)}: {message} [{place}]", hint=hint)


def _read_text(file: Path, hint: str) -> str:
    try:
        content = _read_bytes(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RegistryError(f"{file}: cannot be read: {reason}", hint=hint) from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[:error.start].count(b"\n") + 1
        raise RegistryError(f"{file}:{line}: no UTF-8 text", hint="it should be a TOML file") from None


def _read_bytes(file: Path) -> bytes:
    """The file's content. A pipe or device is refused unread, since it may never end, or never begin."""
    kind = file.stat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise ValueError("it is no regular file")
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return content


def _parse(text: str, file: Path) -> tuple[dict[str, Any], Mapping[Key, int]]:
    if line := line_of_endless_key(text):
        raise RegistryError(f"{file}:{line}: a key of more than {MAX_PARTS} parts")
    try:
        return tomllib.loads(text), line_index(text)
    except RecursionError:
        raise RegistryError(f"{file}: nested too deeply") from None
    except ValueError as error:
        found = _DECODE_ERROR.fullmatch(str(error))
        if found is None:
            raise RegistryError(_unplaced(text, file, error)) from None
        message = f"{file}:{found['line']}: no valid TOML: {found['what']}, column {found['column']}"
        raise RegistryError(message) from None


def _unplaced(text: str, file: Path, error: ValueError) -> str:
    """What to say of an error that ``tomllib`` gives no line for: one at the end, or a number with too many digits."""
    digits = _DIGITS.search(text)
    line = text.count("\n", 0, digits.start() if digits else len(text.rstrip())) + 1
    return f"{file}:{line}: no valid TOML: {'a number of thousands of digits' if digits else error}"


def fault(value: Any, path: Key = ()) -> tuple[Key, str] | None:
    """Where and why a TOML value cannot be a setting: a non-finite number, a date, an integer beyond 64 bits, text
    that is no UTF-8, bottomless nesting. None where it can."""
    if reason := _reason(value) or (len(path) > MAX_DEPTH and f"nested deeper than {MAX_DEPTH} levels"):
        return path, reason
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in items if (found := _no_text(key, path) or fault(item, (*path, key)))), None)


def _reason(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f"should be a finite number, got {value}"
    if isinstance(value, int) and not -2**63 <= value < 2**63:
        return "should be an integer of at most 64 bits"
    if isinstance(value, str):
        return "" if _is_text(value) else "should be UTF-8 text"
    if not isinstance(value, dict | list | bool | int | float | None):
        return f"dates and times are no values here, got {value}"
    return ""


def _no_text(key: Any, path: Key) -> tuple[Key, str] | None:
    return None if not isinstance(key, str) or _is_text(key) else (path, "keys should be UTF-8 text")


def _is_text(value: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in value)
