"""From a profile's name to its validated settings, with an account of every value.

Nothing here loads a plugin: a role's section is checked for ``use`` alone until the plan is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import RunFolderError
from .layers import Dropped, Merged, Origin, merge
from .lines import Key
from .names import dotted
from .profile import Profile
from .source import Source, fault, read_sources
from .validate import validate

DEFAULT = Origin("default")


@dataclass(frozen=True)
class Explained:
    """One value of a resolved profile and where it came from."""

    key: str
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Resolved:
    """A profile ready for planning: the merged values and the core's view of them."""

    merged: Merged
    profile: Profile
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        return self.merged.name

    @property
    def explained(self) -> tuple[Explained, ...]:
        """Every value the core knows, defaults included, with its origin; keys of plugins as they were written."""
        return explain(self.profile.model_dump(mode="json"), self.merged)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        return self.merged.dropped


def resolve(name: str, *, registry: Path | None = None, overrides: Iterable[str] = (),
            cwd: Path | None = None) -> Resolved:
    """Read every registry layer and resolve profile ``name``; RegistryError on anything wrong."""
    sources = read_sources(registry, cwd=cwd)
    merged = merge(sources, name, overrides)
    return Resolved(merged, validate(Profile, merged.values, merged), sources)


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object that a file of a run folder holds; RunFolderError where it holds none."""
    if file.exists() and not file.is_file():
        raise RunFolderError(f"{file} is no file", hint="restore it from a copy")
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}", hint="restore it from a copy") from error
    if not isinstance(found, dict):
        raise RunFolderError(f"{file} holds no JSON object", hint="restore it from a copy")
    return found


def recorded(file: Path, name: str) -> Resolved:
    """Profile ``name`` as a run's ``profile.json`` keeps it, every value written out."""
    values = read_object(file)
    if found := fault(values):
        raise RunFolderError(f"{file}: {dotted(found[0])}: {found[1]}", hint="restore it from a copy")
    origin = Origin("recorded", file=file)
    merged = Merged(name, (name,), values, {(): origin, **dict.fromkeys(_paths(values, ()), origin)}, ())
    return Resolved(merged, validate(Profile, values, merged), ())


def explain(values: Mapping[str, Any], merged: Merged) -> tuple[Explained, ...]:
    """Every value of ``values`` (a profile as JSON data, defaults written out) with its origin."""
    return tuple(Explained(dotted(path), value, _origin(merged, path)) for path, value in _leaves(values, ()))


def _paths(value: Any, path: Key) -> Iterator[Key]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _leaves(value: Any, path: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path, value


def _origin(merged: Merged, path: Key) -> Origin:
    return merged.origins.get(path, DEFAULT)
