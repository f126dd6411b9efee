"""From a profile's name to its validated settings, with an account of every value.

Nothing here loads a plugin: a role's section is checked for ``use`` alone until the plan is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract import RegistryError, RunFolderError
from .layers import Dropped, Merged, Origin, merge, overlaid, profile_names
from .lines import Key
from .names import dotted
from .profile import Profile
from .site import SiteFile, check_references, read_site_file
from .source import EXTENDS, Source, fault, read_sources
from .validate import REQUIRED, validate

DEFAULT = Origin("default")


@dataclass(frozen=True)
class Explained:
    """One value of a resolved profile and where it came from."""

    key: str
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Resolved:
    """A profile ready for planning: the merged values and the core's view of them. ``site`` is the site file that its
    references were looked up in, None where there was none."""

    merged: Merged
    profile: Profile
    sources: tuple[Source, ...]
    site: SiteFile | None = None

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
            cwd: Path | None = None, site: Path | None = None) -> Resolved:
    """Read every registry layer and the site file and resolve profile ``name``; RegistryError on anything wrong.
    ``site`` None: the file that the environment names, if any."""
    sources, given = read_sources(registry, cwd=cwd), read_site_file(site)
    merged = merge(sources, name, overrides, given)
    check_references(merged)
    return Resolved(merged, _whole(merged, sources), sources, given)


def _whole(merged: Merged, sources: Sequence[Source]) -> Profile:
    """The profile; one that others have to complete says which they are."""
    try:
        return validate(Profile, merged.values, merged)
    except RegistryError as error:
        heirs = [name for name in profile_names(sources) if any(
            source.profiles.get(name, {}).get(EXTENDS) == merged.name for source in sources)]
        if heirs and REQUIRED in error.message:
            raise RegistryError(error.message, hint=f"profiles that extend it: {', '.join(heirs)}") from None
        raise


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


def recorded(file: Path, name: str, overrides: Iterable[str] = ()) -> Resolved:
    """Profile ``name`` as a run's ``profile.json`` keeps it, every value written out, with ``--set`` arguments on
    top."""
    values = read_object(file)
    if found := fault(values):
        raise RunFolderError(f"{file}: {dotted(found[0])}: {found[1]}", hint="restore it from a copy")
    merged = overlaid(name, values, Origin("recorded", file=file), overrides)
    return Resolved(merged, validate(Profile, merged.values, merged), ())


def explain(values: Mapping[str, Any], merged: Merged) -> tuple[Explained, ...]:
    """Every value of ``values`` (a profile as JSON data, defaults written out) with its origin."""
    return tuple(Explained(dotted(path), value, _origin(merged, path)) for path, value in _leaves(values, (), merged))


def _paths(value: Any, path: Key) -> Iterator[Key]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from _paths(inner, (*path, key))


def _leaves(value: Any, path: Key, merged: Merged) -> Iterator[tuple[Key, Any]]:
    """Values that are no tables. A list is one value, and of its items only those count again that a site file gave."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key), merged)
    else:
        yield path, value
    if isinstance(value, list):
        yield from _of_the_site(value, path, merged)


def _of_the_site(value: Any, path: Key, merged: Merged) -> Iterator[tuple[Key, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if _origin(merged, (*path, key)).layer == "site":
            yield (*path, key), inner
        yield from _of_the_site(inner, (*path, key), merged)


def _origin(merged: Merged, path: Key) -> Origin:
    return merged.origins.get(path, DEFAULT)
