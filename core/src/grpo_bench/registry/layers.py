"""Merging: a profile's values out of the layers that set them, each with its origin.

A profile is laid down from its furthest ancestor to itself, and each of these from the packaged registry over the
user's to the local one; ``--set`` comes last, all of it as one layer. Tables merge, everything else replaces. Then the
site file's values take the place of references to them.

One rule concerns plugins. A role's keys belong to the plugin that its section's ``use`` names. Where a layer sets
``use`` to another name than the layers below, what those said for the role is dropped, since it was meant for the other
plugin; ``use`` with the same name again drops nothing.
"""

from __future__ import annotations

import copy
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..contract import InputError, RegistryError, Role
from .lines import Key, line_of
from .names import choices, dotted, shown
from .overrides import parse_overrides
from .references import references
from .source import EXTENDS, Source, error_at

if TYPE_CHECKING:
    from .site import SiteFile


@dataclass(frozen=True)
class Origin:
    """Where a value was set: the layer (``packaged``, ``user``, ``local``, ``--set``, ``site``, ``default``), and for a
    file also its profile and line. ``note`` says how a value came about that nobody wrote there."""

    layer: str
    profile: str | None = None
    file: Path | None = None
    line: int | None = None
    note: str = ""

    def __str__(self) -> str:
        place = f"{self.layer} {self.place}" if self.file else self.layer
        return f"{place} ({self.note})" if self.note else place

    @property
    def place(self) -> str:
        """File and line, as far as there are any."""
        return f"{self.file}:{self.line}" if self.line else str(self.file or "")


@dataclass(frozen=True)
class Dropped:
    """Keys of a role's section that fell away when another plugin was chosen."""

    section: str
    keys: tuple[str, ...]
    plugin: str
    chosen: str
    origin: Origin


@dataclass(frozen=True)
class Merged:
    """A profile's values before any model has seen them. ``chain`` runs from the furthest ancestor to the profile."""

    name: str
    chain: tuple[str, ...]
    values: Mapping[str, Any]
    origins: Mapping[Key, Origin]
    dropped: tuple[Dropped, ...]

    def origin(self, path: Key) -> Origin:
        """Where the value at ``path`` was set, or the nearest table around it; the profile itself if neither was."""
        found = (self.origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self.origins)
        return next(found, self.origins[()])

    def blamed(self, path: Key, message: str) -> Key:
        """Of the values inside the table at ``path`` that ``message`` names, the one laid down last; else the table."""
        words = set(re.findall(r"\w+", message))
        named = [known for known in self.origins if known[:len(path)] == path and known[len(path):]
                 and known[-1] in words]
        return named[-1] if named else path

    def typed(self, path: Key) -> str:
        """``path`` as the user typed it: under the profile that set it, or after ``--set``."""
        origin = self.origin(path)
        if origin.layer == "--set":
            return f"--set {dotted(path)}"
        return dotted(("profiles", origin.profile or self.name, *path))

    def error(self, path: Key, message: str, *, hint: str = "", kind: type[InputError] = RegistryError) -> InputError:
        """An error on the value at ``path``, with its file and line."""
        origin = self.origin(path)
        place = f" [{origin.place}]" if origin.file else ""
        return kind(f"{self.typed(path)}: {message}{place}", hint=hint)

    def latest(self, *paths: Key) -> Key:
        """Of values that do not fit together the one laid down last; the first where nobody set any."""
        order = {known: number for number, known in enumerate(self.origins)}
        return max(paths, key=lambda path: order.get(path, -1))


def profile_names(sources: Sequence[Source]) -> tuple[str, ...]:
    """All profiles of all layers, in the order they first appear."""
    return tuple(dict.fromkeys(name for source in sources for name in source.profiles))


def merge(sources: Sequence[Source], name: str, overrides: Iterable[str] = (),
          site: SiteFile | None = None) -> Merged:
    """The values of profile ``name`` with ``--set`` arguments on top, references to ``site`` resolved."""
    chain = _chain(sources, name)
    tree = _Tree()
    for profile in chain:
        for source in _setters(sources, profile):
            origin = partial(_origin_in, source, profile)
            tree.lay({key: value for key, value in source.profiles[profile].items() if key != EXTENDS}, origin)
            tree.origins[()] = origin(())
    tree.lay(parse_overrides(overrides), lambda _: Origin("--set"))
    tree.complete_validation_sampling()
    if site is not None:
        tree.resolve_references(site)
    return Merged(name, chain, tree.values, tree.origins, tuple(tree.dropped))


def overlaid(name: str, values: Mapping[str, Any], origin: Origin, overrides: Iterable[str]) -> Merged:
    """``values``, all of one ``origin``, with ``--set`` arguments on top."""
    tree = _Tree()
    tree.lay(values, lambda _: origin)
    tree.origins[()] = origin
    tree.lay(parse_overrides(overrides), lambda _: Origin("--set"))
    return Merged(name, (name,), tree.values, tree.origins, tuple(tree.dropped))


def _chain(sources: Sequence[Source], name: str) -> tuple[str, ...]:
    if name not in profile_names(sources):
        raise RegistryError(f"{shown(name)}: no such profile{choices(name, profile_names(sources))}",
                            hint="files read: " + ", ".join(str(source.file) for source in sources))
    chain = [name]
    while (parent := _parent(sources, chain[-1])) is not None:
        source, base = parent
        path = ("profiles", chain[-1], EXTENDS)
        if not isinstance(base, str):
            raise error_at(source.file, source.lines, path, f"should be a profile's name, got {base!r:.60}")
        if base not in profile_names(sources):
            message = f"no such profile {base!r}{choices(base, profile_names(sources))}"
            raise error_at(source.file, source.lines, path, message)
        if base in chain:
            circle = " -> ".join([*chain[chain.index(base):], base])
            hint = "files merge by themselves; leave it out" if base == chain[-1] else ""
            raise error_at(source.file, source.lines, path, f"goes in a circle: {circle}", hint=hint)
        chain.append(base)
    return tuple(reversed(chain))


def _parent(sources: Sequence[Source], name: str) -> tuple[Source, Any] | None:
    setters = [source for source in _setters(sources, name) if EXTENDS in source.profiles[name]]
    return (setters[-1], setters[-1].profiles[name][EXTENDS]) if setters else None


def _setters(sources: Sequence[Source], name: str) -> list[Source]:
    return [source for source in sources if name in source.profiles]


def _origin_in(source: Source, profile: str, path: Key) -> Origin:
    return Origin(source.layer, profile, source.file, line_of(source.lines, ("profiles", profile, *path)))


def _origin_at(site: SiteFile, key: str, _: Key) -> Origin:
    return Origin("site", file=site.file, line=site.line(key), note=key)


class _Tree:
    """Values and origins while layers are laid on each other."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[Key, Origin] = {}
        self.dropped: list[Dropped] = []

    def lay(self, data: Mapping[str, Any], origin: Callable[[Key], Origin]) -> None:
        """Put one layer's values on top; ``origin`` tells where each of them was set."""
        for role in Role:
            self._drop_other_plugins_keys(role.value, data.get(role.value), origin)
        self._merge((), self.values, data, origin)

    def complete_validation_sampling(self) -> None:
        """Write out training's sampling values where validation gives none of its own."""
        training, validation = self.values.get("sampling"), self.values.get("validation")
        own = validation.get("sampling") if isinstance(validation, dict) else None
        if not isinstance(training, dict) or not isinstance(own, dict):
            return
        for key in training.keys() - own.keys():
            own[key] = copy.deepcopy(training[key])
            origin = self.origins["sampling", key]
            self.origins["validation", "sampling", key] = Origin(
                origin.layer, origin.profile, origin.file, origin.line, note="as in training")

    def resolve_references(self, site: SiteFile) -> None:
        """Put what the site file says where references to it stand; one that it says nothing to stays."""
        for path, key in list(references(self.values)):
            found = site.get(key)
            if found is not None:
                holder = reduce(operator.getitem, path[:-1], cast("Any", self.values))
                holder[path[-1]] = found
                self._note(path, found, partial(_origin_at, site, key))

    def _drop_other_plugins_keys(self, section: str, new: Any, origin: Callable[[Key], Origin]) -> None:
        old = self.values.get(section)
        if not (isinstance(new, dict) and isinstance(old, dict) and "use" in new and "use" in old):
            return
        if new["use"] == old["use"]:
            return
        keys = tuple(sorted(old.keys() - {"use"}))
        if keys:
            self.dropped.append(Dropped(section, keys, str(old["use"]), str(new["use"]), origin((section, "use"))))
        self._forget((section,), self.values.pop(section))

    def _merge(self, path: Key, into: dict[str, Any], data: Mapping[str, Any], origin: Callable[[Key], Origin]) -> None:
        for key, value in data.items():
            here = (*path, key)
            if isinstance(value, dict) and isinstance(into.get(key), dict):
                self._merge(here, into[key], value, origin)
            else:
                if key in into:
                    self._forget(here, into[key])
                into[key] = copy.deepcopy(value)
                self._note(here, value, origin)

    def _note(self, path: Key, value: Any, origin: Callable[[Key], Origin]) -> None:
        self.origins[path] = origin(path)
        for key, inner in _inside(value):
            self._note((*path, key), inner, origin)

    def _forget(self, path: Key, value: Any) -> None:
        self.origins.pop(path, None)
        for key, inner in _inside(value):
            self._forget((*path, key), inner)


def _inside(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
