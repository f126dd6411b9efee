"""Each distribution declares what it imports, and its wheel carries what it reads."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT / "core", *sorted(file.parent for place in ("plugins", "examples")
                                  for file in ROOT.glob(f"{place}/*/pyproject.toml"))]
every = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def imported(folder: Path) -> Iterator[str]:
    """Top-level modules that its sources import, relative imports left out, and those of programs from beside them."""
    for file in (folder / "src").rglob("*.py"):
        names: list[str] = []
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names += [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module.partition(".")[0])
        yield from (name for name in names if not (file.parent / f"{name}.py").exists())


def locked(folder: Path) -> set[str]:
    """What the environment of its workers has: modules are named like a distribution, or like its first word."""
    steps = [step for file in (folder / "src").rglob("env*.toml") for step in tomllib.loads(file.read_text())["steps"]]
    names = [pin.partition("==")[0].replace("-", "_") for step in steps for pin in step["packages"]]
    return {*names, *(name.partition("_")[0] for name in names)}


def is_cache(part: str) -> bool:
    return part == "__pycache__" or part.startswith(".")


@every
def test_a_distribution_declares_what_it_imports(folder: Path) -> None:
    facts = project(folder)
    lines = [line for group in (facts["dependencies"], *facts.get("optional-dependencies", {}).values())
             for line in group]
    declared = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in (facts["name"], *lines)}
    assert set(imported(folder)) - declared - locked(folder) - sys.stdlib_module_names == set()


@every
def test_a_wheel_carries_every_file_of_its_package(folder: Path, tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(folder)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        source = folder / "src"
        files = [file.relative_to(source) for file in source.rglob("*") if file.is_file()]
        assert {file.as_posix() for file in files if not any(map(is_cache, file.parts))} <= names
        if folder.name == "core":
            assert archive.read("grpo_bench/registry.toml") == (ROOT / "registry.toml").read_bytes()
