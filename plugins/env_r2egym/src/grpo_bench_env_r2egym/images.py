"""The image that a task runs in, and where its hidden tests are.

A folder ``<images>/<instance id>`` with an ``image.toml`` comes first: a root filesystem (this machine's, or a
folder), what is bound into it, the repository to copy (``testbed``), and beside it ``r2e_tests`` and ``run_tests.sh``,
which only a grading sandbox gets to see. Otherwise it is a SIF image, which has all of these inside: the repository in
``/testbed`` and the tests where R2E-Gym puts them, which an agent finds empty.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from grpo_bench.contract import PlanError, Settings
from grpo_bench_sandbox import Image
from pydantic import ValidationError

from .images_lookup import find_sif

WORKDIR = "/testbed"
TESTS, SCRIPT = "r2e_tests", "run_tests.sh"
HIDDEN = (*(f"{folder}/{name}" for folder in ("", "/root")
            for name in (TESTS, SCRIPT, "expected_test_output.json", "parsed_commit.json")),
          f"{WORKDIR}/{TESTS}", f"{WORKDIR}/{SCRIPT}")
"""Where a SIF image of R2E-Gym keeps what an agent must not see."""


class _Toml(Settings):
    """image.toml."""

    schema_: Literal[1]
    root: Literal["host", "folder"]
    path: Path | None = None
    binds: Mapping[str, str] = {}
    masks: tuple[str, ...] = ()
    workdir: str = WORKDIR


@dataclass(frozen=True)
class TaskImage:
    """``source`` is the repository whose copy becomes ``workdir``; ``tests`` and ``script`` are the hidden tests and
    the script that runs them, on this host. All three are None for a SIF image, which has them inside."""

    image: Image
    workdir: str
    source: Path | None = None
    tests: Path | None = None
    script: Path | None = None

    @property
    def for_grading(self) -> Image:
        """The same image with its hidden files to be seen, where they are inside."""
        return replace(self.image, masks=()) if self.tests is None else self.image


def find_image(images: Path, instance_id: str, dataset: str) -> TaskImage | None:
    """The image of a task; None where there is none. PlanError where there is one that is not complete."""
    folder = images / instance_id
    if (folder / "image.toml").is_file():
        return _from_folder(folder)
    sif = find_sif(images, instance_id, {"dataset_name": dataset})
    return None if sif is None else TaskImage(Image("sif", sif, masks=HIDDEN), WORKDIR)


def _from_folder(folder: Path) -> TaskImage:
    place = folder / "image.toml"
    try:
        data: dict[str, Any] = tomllib.loads(place.read_text())
        toml = _Toml.model_validate({"schema_" if key == "schema" else key: value for key, value in data.items()})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{place}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise PlanError(f"{place}: {'.'.join(map(str, first['loc'])).rstrip('_')}: {first['msg']}") from None
    if (toml.root == "folder") != (toml.path is not None):
        raise PlanError(f"{place}: path names the root filesystem where root is \"folder\", and only there")
    for name in ("testbed", TESTS, SCRIPT):
        if not (folder / name).exists():
            raise PlanError(f"{folder / name} is missing", hint="build the task again")
    binds = {inside: str(_resolved(folder, host)) for inside, host in toml.binds.items()}
    root = None if toml.path is None else _resolved(folder, str(toml.path))
    image = Image(toml.root, root, binds, toml.masks)
    return TaskImage(image, toml.workdir, folder / "testbed", folder / TESTS, folder / SCRIPT)


def _resolved(folder: Path, path: str) -> Path:
    """A path of image.toml: absolute, in the home folder, or beside the file."""
    return folder / Path(path).expanduser()
