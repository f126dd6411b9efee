#!/usr/bin/env python3
"""Prints what the distributions of this project need beside each other, one requirement a line: all that engine.lock
has to hold. Of their extras it is those of EXTRAS."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("checker", "loss", "parquet", "ray")


def needs(root: Path = ROOT) -> list[str]:
    """Each requirement once, in order."""
    projects = [tomllib.loads(file.read_text())["project"]
                for file in (root / "core/pyproject.toml", *root.glob("plugins/*/pyproject.toml"))]
    own = {project["name"] for project in projects}
    return sorted({line for project in projects for line in _lines(project) if name_of(line) not in own})


def name_of(requirement: str) -> str:
    """The distribution that a requirement is about, as indexes spell it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement.strip())[0]).lower()


def _lines(project: dict[str, object]) -> Iterator[str]:
    extras = project.get("optional-dependencies", {})
    assert isinstance(extras, dict) and isinstance(project["dependencies"], list)
    yield from project["dependencies"]
    for name in EXTRAS:
        yield from extras.get(name, [])


if __name__ == "__main__":
    print(*needs(), sep="\n")
