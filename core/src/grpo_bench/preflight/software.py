"""What software a run would be made of: source trees and the versions of every part.

A source tree that is not a commit is said and not judged: whether it may be is a matter of the rules. A version is
judged by what the plugin's descriptor supports, and by nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from packaging.specifiers import SpecifierSet

from ..contract import Finding
from ..registry import Part, Plan


def findings(plan: Plan) -> Iterator[Finding]:
    parts = (*plan.parts.values(), *plan.observers)
    yield _sources(plan)
    yield from filter(None, map(_refused, parts))
    yield Finding("versions", True, "; ".join(dict.fromkeys(map(_versions, parts))))


def _sources(plan: Plan) -> Finding:
    trees: dict[str, Any] = plan.provenance["sources"]
    said = [f"{folder} is {_commit(state)}" for folder, state in trees.items()]
    if path := os.environ.get("PYTHONPATH"):
        said.append(f"PYTHONPATH = {path} comes before what is installed")
    return Finding("source", True, "; ".join(said) or "everything is installed, nothing runs from a source tree")


def _commit(state: dict[str, Any]) -> str:
    if state["dirty"] is None or state["commit"] is None:
        return "in a state that git does not tell"
    return f"commit {state['commit'][:12]}" + (" with changes that no commit holds" if state["dirty"] else "")


def _refused(part: Part) -> Finding | None:
    """Versions in the environment of a part's workers that its plugin does not support; those beside the engine were
    judged when it was loaded."""
    found: dict[str, Any] = dict(part.inventory.get("versions", {}))
    wrong = [f"{name} {found[name]}, and it works with {versions}"
             for name, versions in part.descriptor.supports.items()
             if name in found and not SpecifierSet(versions).contains(found[name], prereleases=True)]
    if not wrong:
        return None
    return Finding(f"versions of {part.role.value} {part.name}", False, "; ".join(wrong), key=f"{part.role.value}.env",
                   why="the plugin is not known to work with it", fix=f"grpo-bench env build {part.env}")


def _versions(part: Part) -> str:
    inside = [f"{name} {version}" for name, version in part.inventory.get("versions", {}).items()]
    return f"{part.distribution} {part.version}" + (f" with {', '.join(inside)}" if inside else "")
