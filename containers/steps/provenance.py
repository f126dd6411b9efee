#!/usr/bin/env python3
"""Writes what an image says about itself, for every run in it to record (docs/containers.md describes each key).

It is run by the engine's interpreter as the last step of a build, and looks at what is there: wheels against what is
installed, records of built environments, packages of the distribution. What was not installed from the wheels is an
error, so no image has a statement that does not hold for it. Equal images have equal bytes: the date is the commit's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import Any

SCHEMA = 1
MARK = "revision"
"""The recipe's file that differs from commit to commit and is no part of its hash."""


class RecipeError(Exception):
    """Why this is no image of the commit that is named."""


def statement(arguments: argparse.Namespace) -> dict[str, Any]:
    base, *others = arguments.base
    environments = dict(_environments(_folder("GRPO_BENCH_ENVS")))
    locks = {file.stem: _sha256(file) for file in sorted(arguments.recipe.glob("*.lock"))}
    _refuse_folders()
    return {
        "schema": SCHEMA,
        "revision": arguments.revision,
        "built": datetime.fromtimestamp(_epoch(), UTC).isoformat(),
        "architecture": platform.machine(),
        "base": base, "base_digest": base.partition("@")[2], "other_bases": others,
        "recipe_sha256": recipe_hash(arguments.recipe),
        "locks": {**locks, **{name: built["lock_sha256"] for name, built in environments.items()}},
        "environments": environments,
        "distributions": dict(_distributions(arguments.wheels)),
        "system": _system(),
    }


def recipe_hash(folder: Path) -> str:
    """One hash over names and bytes of the recipe's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name != MARK and "__pycache__" not in file.parts:
            digest.update(f"{name}\0{_sha256(file)}\n".encode())
    return digest.hexdigest()


def _distributions(wheels: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each distribution of the project by name, once it is sure that its wheel is what is installed."""
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise RecipeError(f"there are no wheels in {wheels}")
    for file in files:
        name, version, *_ = file.name.split("-")
        name, sha256 = re.sub(r"[-_.]+", "-", name).lower(), _sha256(file)
        try:
            origin = json.loads(distribution(name).read_text("direct_url.json") or "{}")
        except PackageNotFoundError:
            raise RecipeError(f"{name} is not installed") from None
        if origin.get("archive_info", {}).get("hashes", {}).get("sha256") != sha256:
            raise RecipeError(f"{name} is not installed from {file}")
        yield name, {"version": version, "wheel": file.name, "sha256": sha256}


def _refuse_folders() -> None:
    for found in distributions():
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if "dir_info" in origin:
            raise RecipeError(f"{found.name} is installed from {origin['url']}, and an image has wheels only")


def _environments(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The environments of workers that were built, by name."""
    for file in sorted(folder.glob("*.json")):
        if not file.name.endswith(".inventory.json"):
            record = json.loads(file.read_text())
            yield file.stem.rsplit("-", 2)[0], {"build": file.stem, "lock_sha256": record["lock"],
                                                "python": record["python"]}


def _system() -> dict[str, Any]:
    """What came from the distribution, which no lock holds."""
    packages = _said("dpkg-query", "--show", "--showformat", "${Package}:${Architecture} ${Version}\\n")
    lines = sorted(packages.splitlines())
    return {"release": platform.freedesktop_os_release()["PRETTY_NAME"], "packages": len(lines),
            "packages_sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
            "apptainer": _said("apptainer", "--version").strip()}


def _said(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RecipeError(f"{command[0]} does not work here: {error}") from None


def _epoch() -> int:
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not re.fullmatch(r"[0-9]{1,11}", given):
        raise RecipeError(f"SOURCE_DATE_EPOCH: should be seconds since 1970, as git log -1 --format=%ct says them; "
                          f"got {given!r}")
    return int(given)


def _folder(variable: str) -> Path:
    given = os.environ.get(variable)
    if not given:
        raise RecipeError(f"{variable} should name a folder")
    return Path(given)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--revision", required=True, help="full commit hash")
    parser.add_argument("--base", required=True, action="append", help="base image with its digest; then further ones")
    parser.add_argument("--recipe", required=True, type=Path, help="folder of the recipe")
    parser.add_argument("--wheels", required=True, type=Path, help="folder of the wheels that were installed")
    parser.add_argument("--out", required=True, type=Path, help="file to write")
    arguments = parser.parse_args()
    check = Path(__file__).with_name("check.sh")
    if code := subprocess.run([check, arguments.revision, *arguments.base], check=False).returncode:
        return code
    try:
        text = json.dumps(statement(arguments), indent=1, sort_keys=True) + "\n"
    except RecipeError as error:
        print(error, file=sys.stderr)
        return 2
    arguments.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
