"""What images are made of: one job for each task, or why there cannot be one."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo_bench_sandbox.sif import SifError, squashfs_of

from .images import SCRIPT, TESTS, WORKDIR
from .images_build import ImageError, Job, Run, remove
from .images_lookup import find_sif
from .rows import Row

Origin = Literal["docker", "folder", "sif"]
HIDDEN_NAMES = (TESTS, SCRIPT, "expected_test_output.json", "parsed_commit.json")
NO_APPTAINER = ("apptainer is not on PATH, and nothing else makes a SIF. Make the images on a machine that has it and "
                "copy them, or, from SIFs that are there, root filesystems for bubblewrap with --from sif")


@dataclass(frozen=True)
class Impossible:
    """Why a task has no image to make."""

    instance_id: str
    reason: str


@dataclass(frozen=True)
class Tools:
    """Programs that make images, by path; None where one is not installed."""

    apptainer: str | None
    unsquashfs: str | None

    @classmethod
    def here(cls) -> Tools:
        return cls(shutil.which("apptainer") or shutil.which("singularity"), shutil.which("unsquashfs"))

    def lack(self, origin: Origin) -> str:
        """Why this machine can make no image this way; empty where it can."""
        if origin == "sif":
            return "" if self.unsquashfs else "unsquashfs is not on PATH; it is part of squashfs-tools"
        return "" if self.apptainer else NO_APPTAINER


def jobs(rows: Iterator[Row], origin: Origin, images: Path, out: Path, tools: Tools) -> Iterator[Job | Impossible]:
    """In the order of the rows. ``images`` is where the image folders or SIFs are that images are made of."""
    make = {"docker": _from_docker, "folder": _from_folder, "sif": _from_sif}[origin]
    for row in rows:
        lack = tools.lack(origin)
        yield Impossible(row.instance_id, lack) if lack else make(row, images, out, tools)


def _from_docker(row: Row, images: Path, out: Path, tools: Tools) -> Job | Impossible:
    name = str(row.columns.get("docker_image", ""))
    if not name:
        return Impossible(row.instance_id, "its row has no docker_image")
    source = name if "://" in name else f"docker://{name}"
    return Job(row.instance_id, source, out / f"{row.instance_id}.sif",
               lambda part, run: run([str(tools.apptainer), "build", "--force", str(part), source]))


def _from_folder(row: Row, images: Path, out: Path, tools: Tools) -> Job | Impossible:
    folder = images / row.instance_id
    try:
        image = tomllib.loads((folder / "image.toml").read_text())
    except (OSError, ValueError) as error:
        return Impossible(row.instance_id, f"no image folder: {folder / 'image.toml'}: {error}")
    if image.get("root") != "folder":
        return Impossible(row.instance_id, f"{folder / 'image.toml'}: root is {image.get('root')!r}; only an image "
                                           "that brings its own root filesystem can become a SIF")
    root = (folder / image["path"]).resolve()
    parts = {image.get("workdir", "/testbed"): folder / "testbed", **image.get("binds", {})}

    def make(part: Path, run: Run) -> None:
        recipe = part.with_name(part.name + ".def")
        files = "".join(f"    {source} {inside}\n" for inside, source in parts.items() if Path(source).exists())
        recipe.write_text(f"Bootstrap: localimage\nFrom: {root}\n\n%files\n{files}")
        try:
            run([str(tools.apptainer), "build", "--force", str(part), str(recipe)])
        finally:
            recipe.unlink()

    return Job(row.instance_id, f"folder {folder}", out / f"{row.instance_id}.sif", make)


def _from_sif(row: Row, images: Path, out: Path, tools: Tools) -> Job | Impossible:
    found = find_sif(images, row.instance_id, {"dataset_name": row.dataset})
    if found is None:
        return Impossible(row.instance_id, f"no SIF image of it in {images}")
    try:
        part_of = squashfs_of(found)
    except SifError as error:
        return Impossible(row.instance_id, str(error))
    target = out / row.instance_id
    options = [] if os.geteuid() == 0 else ["-ignore-errors", "-no-exit-code"]  # device files are only root's to make

    def make(part: Path, run: Run) -> None:
        part.mkdir()
        run([str(tools.unsquashfs), "-no-progress", "-no-xattrs", *options, "-offset", str(part_of.offset),
             "-dest", str(part / "rootfs"), str(found)])
        _take_apart(part, run)
        path = json.dumps(str(target.resolve() / "rootfs"))
        (part / "image.toml").write_text(f'schema = 1\nroot = "folder"\npath = {path}\nworkdir = "{WORKDIR}"\n')

    return Job(row.instance_id, f"sif {found.resolve()} {found.stat().st_size}", target, make)


def _take_apart(folder: Path, run: Run) -> None:
    """Make an image folder of an unpacked image: the repository with a history of one commit, and the hidden tests,
    each beside the root filesystem and no longer in it."""
    root, testbed = folder / "rootfs", folder / "testbed"
    inside = root / WORKDIR.lstrip("/")
    if inside.is_symlink() or not inside.is_dir():
        raise ImageError(f"the image has no folder {WORKDIR}")
    inside.rename(testbed)
    inside.mkdir()
    homes = [place for place in (root, root / "root", testbed) if not place.is_symlink()]
    for name in (TESTS, SCRIPT):
        there = [home / name for home in homes if not (home / name).is_symlink() and (home / name).exists()]
        if not there:
            raise ImageError(f"the image has no {name} in /, /root or {WORKDIR}")
        there[0].rename(folder / name)
    for name in HIDDEN_NAMES:
        for home in homes:
            remove(home / name)
    remove(testbed / ".git")
    git = ["env", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "git", "-C", str(testbed),
           "-c", "user.name=task", "-c", "user.email=task@localhost", "-c", "init.defaultBranch=main"]
    run([*git, "init", "-q", "--template="])
    (testbed / ".git" / "info").mkdir()
    (testbed / ".git" / "info" / "exclude").write_text("/.venv\n")
    run([*git, "add", "-A"])
    run([*git, "commit", "-q", "--allow-empty", "-m", "task"])
