"""What software a run is made of: versions and content hashes of every distribution that takes part, source trees.

A hash covers names and bytes of a distribution's import packages as they lie on disk, so an edited file shows, and an
editable install of equal sources has the hash of the wheel. The packaged registry is no part of it: a checkout keeps it
elsewhere, and a run's resolved profile holds what it said.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from .installed import CORE, GROUP
from .metadata import head_of
from .places import FILE_NAME

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")


def distribution_lock(names: Iterable[str]) -> dict[str, Any]:
    """What the distributions ``names`` and all they require are, as JSON data.

    ``distributions`` has version and hash of the core and of everything built on it, ``libraries`` the version of all
    other requirements, ``sources`` commit and state of the source trees that editable installs point to.
    """
    closure = _closure([CORE, *names])
    ours = {name: found for name, found in closure.items() if name == CORE or CORE in found.requires}
    return {
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "distributions": {name: {"version": found.version, "sha256": _content_hash(found.distribution)}
                          for name, found in sorted(ours.items())},
        "libraries": {name: found.version for name, found in sorted(closure.items()) if name not in ours},
        "sources": _source_trees(found.distribution for found in ours.values()),
    }


def dirty_sources(lock: Mapping[str, Any]) -> list[str]:
    """Folders of source trees in ``lock`` whose state is not a commit."""
    return [folder for folder, state in lock["sources"].items() if state["dirty"] is not False]


def source_faults(lock: Mapping[str, Any]) -> list[str]:
    """What is wrong with these, in words."""
    return [f"source tree {folder} has changes that no commit holds" if lock["sources"][folder]["dirty"] else
            f"git does not say which commit source tree {folder} is" for folder in dirty_sources(lock)]


@dataclass(frozen=True)
class _Member:
    """An installed distribution, with the names of what it requires without its extras."""

    distribution: Distribution
    version: str
    requires: frozenset[str]


def _closure(names: Iterable[str]) -> dict[str, _Member]:
    found: dict[str, _Member] = {}
    waiting = [_normal(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            found[name] = _member(distribution(name))
        except PackageNotFoundError:
            continue
        waiting += found[name].requires
    return found


def _member(found: Distribution) -> _Member:
    """What its metadata says."""
    head = head_of(found)
    version, lines = (head["Version"], head.get_all("Requires-Dist")) if head else (found.version, found.requires)
    needed = [_REQUIREMENT.match(line) for line in lines or [] if "extra ==" not in line]
    return _Member(found, version, frozenset(_normal(match[1]) for match in needed if match))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution_files(name: str) -> list[tuple[str, Path]]:
    """What the hash of a distribution covers: every file, by its path from the import package on; none where the
    distribution is not installed."""
    try:
        return list(_files(distribution(name)))
    except PackageNotFoundError:
        return []


def _content_hash(found: Distribution) -> str:
    digest = hashlib.sha256()
    for path, file in _files(found):
        name, content = path.encode(), hashlib.sha256(file.read_bytes()).digest()
        digest.update(len(name).to_bytes(4, "big") + name + content)
    return digest.hexdigest()


def _files(found: Distribution) -> Iterator[tuple[str, Path]]:
    points = {point.value.partition(":")[0].partition(".")[0] for point in found.entry_points
              if point.group.startswith(GROUP)}
    packages = points or {_normal(found.metadata["Name"]).replace("-", "_")}
    for folder in (folder for package in sorted(packages) for folder in _package_folders(package)):
        for file in sorted(folder.rglob("*")):
            inside = file.relative_to(folder)
            if file.is_file() and inside != Path(FILE_NAME) and not any(map(_is_cache, inside.parts)):
                yield Path(folder.name, inside).as_posix(), file


def _is_cache(part: str) -> bool:
    """Whether a file or folder is what tools leave behind rather than source."""
    return part == "__pycache__" or part.startswith(".")


def _package_folders(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(folder) for folder in spec.submodule_search_locations or ()] if spec else []


def _source_trees(found: Iterable[Distribution]) -> dict[str, dict[str, Any]]:
    folders = {folder for item in found if (folder := _editable_folder(item))}
    return {top: _state(top) for top in sorted({_top_of(folder) for folder in folders})}


def _editable_folder(found: Distribution) -> str | None:
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return unquote(urlsplit(origin["url"]).path) if origin.get("dir_info", {}).get("editable") else None


def _top_of(folder: str) -> str:
    """The top of its source tree, where git keeps what it knows; the folder itself where there is no such thing."""
    real = Path(folder).resolve()
    return str(next((place for place in (real, *real.parents) if (place / ".git").exists()), folder))


def _state(folder: str) -> dict[str, Any]:
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    return {"commit": commit.strip() if commit else None, "dirty": bool(changes) if changes is not None else None}


def _git(folder: str, *arguments: str) -> str | None:
    try:
        result = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=20,
                                check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout
