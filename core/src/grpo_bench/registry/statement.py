"""The provenance statement: all that a run is made of, as one JSON object.

It joins what the distributions are, how each came here, the container around them, the environments of workers with the
locks they were built from, and what the parts said of themselves, hashes of data and templates included. Every key is
described in docs/package.md. A later version of it gets a new number and keeps the keys that readers know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

from ..contract import PlanError, Role
from .envs_python import ask
from .envs_store import places
from .metadata import head_of
from .plan import Part

SCHEMA = 1
CONTAINER_DIGEST = "GRPO_BENCH_CONTAINER_DIGEST"
"""Environment variable in which whoever starts a container says which one it is."""
IMAGE_FILE = Path("/etc/grpo-bench-provenance.json")
"""What the recipe of an image writes about it: revision of this project, digest of the base, hashes of locks."""
_DIGEST = re.compile(r"(\S+@)?sha256:[0-9a-f]{64}")


def statement(lock: Mapping[str, Any], parts: Iterable[Part], *, image_file: Path = IMAGE_FILE,
              **found: Any) -> dict[str, Any]:
    """The statement. ``lock`` is what :func:`distribution_lock` returned for the distributions of ``parts``; ``found``
    are host, policy and tasks."""
    parts = tuple(parts)
    housed = {_key(part): part for part in parts if part.env}
    return {
        "schema": SCHEMA, **lock, **found,
        "installs": {name: _install(name) for name in lock["distributions"]},
        "container": container(image_file),
        "parts": {_key(part): _part(part) for part in parts},
        "environments": {key: {"env": part.env, "inventory": dict(part.inventory)} for key, part in housed.items()},
        "locks": {key: _lock(part) for key, part in housed.items()},
    }


def container(image_file: Path = IMAGE_FILE) -> dict[str, Any]:
    """Which container this process runs in, as far as somebody said: its digest, and what its image holds about itself.
    None where nobody did; PlanError where what is said cannot be so."""
    digest = os.environ.get(CONTAINER_DIGEST) or None
    if digest is not None and not _DIGEST.fullmatch(digest):
        raise PlanError(f"{CONTAINER_DIGEST} should be sha256: and 64 hex digits, after name@ where the image has a "
                        f"name; it is {digest:.100}", hint="the launcher sets it")
    try:
        image = json.loads(image_file.read_text("utf-8"))
    except FileNotFoundError:
        return {"digest": digest, "image": None}
    except (OSError, ValueError) as error:
        raise PlanError(f"{image_file} cannot be read: {error}", hint="the recipe of the image writes it") from None
    if not isinstance(image, dict):
        raise PlanError(f"{image_file} holds no JSON object", hint="the recipe of the image writes it")
    return {"digest": digest, "image": image}


def _key(part: Part) -> str:
    """The role; an observer's name stands behind it, since a run can have several."""
    return f"observer {part.name}" if part.role == Role.OBSERVER else part.role.value


def _part(part: Part) -> dict[str, Any]:
    return {"plugin": part.name, "distribution": part.distribution, "version": part.version,
            "stand_in": part.descriptor.stand_in, "facts": dict(part.facts)}


def _install(name: str) -> dict[str, Any]:
    """How a distribution came here: ``editable`` or ``folder`` of this machine, ``vcs`` with its commit, ``archive``
    with its hash, or ``index``."""
    try:
        origin = json.loads(distribution(name).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return {"kind": "unknown"}
    if "dir_info" in origin:
        return {"kind": "editable" if origin["dir_info"].get("editable") else "folder", "url": origin["url"]}
    if "vcs_info" in origin:
        return {"kind": "vcs", "url": origin["url"], "commit": origin["vcs_info"]["commit_id"]}
    if "archive_info" in origin:
        return {"kind": "archive", "url": origin["url"], "hashes": origin["archive_info"].get("hashes", {})}
    return {"kind": "index"}


def _lock(part: Part) -> dict[str, Any]:
    """What an environment of workers was built from, None where somebody else built it, and the version of everything
    that can be imported there."""
    place = next((place for place in places() if str(place.python) == part.interpreter), None)
    record = place.record() if place is not None else None
    return {"interpreter": part.interpreter, "build": place.key if place is not None else None,
            "lock_sha256": record.lock if record is not None else None, "libraries": _libraries(part.interpreter)}


def _libraries(python: str | None) -> dict[str, str]:
    found = ask(python) if python is not None else ""
    if isinstance(found, str):
        return {}
    paths = [path for path, _ in found.stamps]
    return dict(sorted(named for item in distributions(path=paths) if (named := _named(item))[0]))


def _named(found: Distribution) -> tuple[str, str]:
    head = head_of(found)
    return (head["Name"], head["Version"]) if head else (found.name, found.version)
