"""The site file: what one site's registry files and profiles should not have to say again.

One TOML file outside the repository, which ``--site`` or ``$GRPO_BENCH_SITE`` names. Paths in it are relative to it; a
profile refers to its values (``"site:artifacts.train_data"``). It is wholly readable or an error with file and line.
What it does not say stays a reference in the profile, and the plan lists that among what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from ..contract import InputError
from .lines import Key, line_of
from .names import choices, dotted
from .references import PREFIX, reference, references
from .site_tables import Artifacts, Launch, System, Tables
from .source import error_at, read_toml
from .validate import validate

if TYPE_CHECKING:
    from .layers import Merged
    from .resolved import Resolved

VARIABLE = "GRPO_BENCH_SITE"
_NAMED = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PATHS = tuple(key for key in Artifacts.model_fields if key != "sources")


@dataclass(frozen=True)
class Snapshot:
    """A model's folder in a hub cache, whose files are links into ``blobs``: both have to be where it is used."""

    revision: str
    blobs: Path


@dataclass(frozen=True)
class SiteFile:
    """A site file as read: its tables, paths made absolute, and where its keys stand."""

    file: Path
    tables: Tables
    lines: Mapping[Key, int]

    @property
    def artifacts(self) -> Artifacts:
        return self.tables.artifacts

    @property
    def system(self) -> System:
        return self.tables.system

    @property
    def launch(self) -> Launch:
        return self.tables.launch

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return self.tables.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def get(self, key: str) -> Any:
        """The value of a dotted key; None where the file gives none."""
        value: Any = self._values if key in KEYS else {}
        for part in key.split("."):
            value = value.get(part, {})
        return None if value == {} else value

    def line(self, key: str) -> int | None:
        """Where a dotted key stands."""
        return line_of(self.lines, tuple(key.split(".")))

    @property
    def snapshot(self) -> Snapshot | None:
        """What ``hf_checkpoint`` is in a hub cache; None where it is a folder of its own."""
        return snapshot(Path(self.artifacts.hf_checkpoint)) if self.artifacts.hf_checkpoint else None


def read_site_file(path: Path | None = None) -> SiteFile | None:
    """The site file at ``path``, else the one that the environment names; None where neither names one."""
    named = os.environ.get(VARIABLE)
    if path is None and not named:
        return None
    file = path or Path(named or "")
    data, lines = read_toml(file, hint=f"see --site and ${VARIABLE}")
    written = _Written(file, lines)
    artifacts = data.get("artifacts")
    if isinstance(artifacts, dict):
        paths = {key: _absolute(value, ("artifacts", key), written) for key, value in artifacts.items()
                 if key in _PATHS and isinstance(value, str) and value}
        data = {**data, "artifacts": {**artifacts, **paths}}
    return SiteFile(file, validate(Tables, data, written), lines)


def snapshot(folder: Path) -> Snapshot | None:
    """What ``folder`` is in a hub cache, ``.../snapshots/REVISION`` beside ``.../blobs``; None where it is none."""
    return Snapshot(folder.name, folder.parent.parent / "blobs") if folder.parent.name == "snapshots" else None


def check_references(merged: Merged) -> None:
    """RegistryError where a profile refers to what no site file can say."""
    for path, key in references(merged.values):
        if key not in KEYS:
            near = [known for known in KEYS if known.partition(".")[0] == key.partition(".")[0]]
            raise merged.error(path, f"no site file has a key {key!r}{choices(key, near or Tables.model_fields)}")


def unresolved(resolved: Resolved) -> dict[str, str]:
    """References to keys of a site file that are not given, each with a line: who uses it, what to do."""
    users: dict[str, list[str]] = {}
    for path, key in references(resolved.merged.values):
        users.setdefault(key, []).append(dotted(path))
    site = resolved.site
    todo = f"set it in {site.file}" if site else f"set it in a site file and name that with --site or ${VARIABLE}"
    return {f"{PREFIX}{key}": f"site: {key} ({', '.join(paths)}): {todo}" for key, paths in users.items()}


@dataclass(frozen=True)
class _Written:
    file: Path
    lines: Mapping[Key, int]

    def error(self, path: Key, message: str) -> InputError:
        return error_at(self.file, self.lines, path, message)

    def blamed(self, path: Key, message: str) -> Key:
        return path


def _absolute(text: str, path: Key, written: _Written) -> str:
    """A path with its variables and ``~`` filled in, relative to the file that gives it."""
    if reference(text) is not None:
        raise written.error(path, "a site file cannot refer to a site file")
    unset = [name for pair in _NAMED.findall(text) for name in pair if name and name not in os.environ]
    if unset:
        raise written.error(path, f"${unset[0]} is not set")
    return str(written.file.absolute().parent / os.path.expanduser(os.path.expandvars(text)))


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{field.alias or name}"


KEYS = tuple(_keys(Tables))
"""Every key that a site file can have, dotted."""
