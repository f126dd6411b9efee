"""A task whose image is a SIF as R2E-Gym's are: repository, environment and hidden tests are all inside."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from grpo_bench.contract import ProgramSandbox, Score
from grpo_bench_env_r2egym import R2EGymConfig, images_lookup
from grpo_bench_env_r2egym.environment import R2EGym

from ..toy import Toy

PROGRAMS = ("bash", "sh", "env", "cat", "ls", "mkdir", "rm", "cp", "mv", "git", "tar", "dirname", "sleep", "grep",
            "sed", "chmod", "find")
ARCHITECTURES = {"x86_64": b"02", "aarch64": b"04"}
BACKENDS = [pytest.param(name, marks=pytest.mark.real(name)) for name in ("bwrap", "apptainer")]


def libraries(*programs: str) -> set[str]:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"(/\S+) \(0x", said))


def make_root(root: Path, toy: Toy) -> None:
    """Programs of this machine, its Python, and the task ``total`` where R2E-Gym has it."""
    for folder in ("usr/bin", "tmp", "proc", "sys", "dev", "etc", "root", "run"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    base = Path(os.path.realpath(sys.base_prefix))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "test", "tests", "__pycache__", "config-*",
                                     "idlelib", "ensurepip", "lib2to3")
    shutil.copytree(base / "lib" / version, root / str(base)[1:] / "lib" / version, ignore=ignored, symlinks=True)
    programs = {program: str(shutil.which(program)) for program in PROGRAMS}
    extensions = [str(path) for path in (base / "lib" / version / "lib-dynload").glob("*.so")]
    python = str(base / "bin" / version)
    files = {f"usr/bin/{program}": path for program, path in programs.items()}
    files |= {path[1:]: path for path in (python, *libraries(*programs.values(), python, *extensions))}
    for target, source in files.items():
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(source), root / target)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    image = toy.image("total")
    shutil.copytree(image / "testbed", root / "testbed", symlinks=True)
    shutil.rmtree(root / "testbed/.venv")
    shutil.copytree(toy.folder / "venvs/toy", root / "testbed/.venv", symlinks=True)
    shutil.copytree(image / "r2e_tests", root / "r2e_tests")
    shutil.copy(image / "run_tests.sh", root / "testbed")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory, toy: Toy) -> Path:
    if shutil.which("mksquashfs") is None:
        pytest.skip("mksquashfs is not installed (package squashfs-tools)")
    folder = tmp_path_factory.mktemp("sif")
    make_root(folder / "root", toy)
    subprocess.run(["mksquashfs", "root", "root.sqfs", "-quiet", "-no-progress", "-all-root", "-comp", "gzip"],
                   cwd=folder, check=True, capture_output=True)
    payload = (folder / "root.sqfs").read_bytes()
    arch = ARCHITECTURES[platform.machine()] + b"\0"
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + arch + bytes(16)
    head += struct.pack("<8q", 0, 0, 47, 48, 4096, 48 * 585, 36864, len(payload))
    size, extra = len(payload), struct.pack("<2i3s", 1, 2, arch)
    entry = struct.pack("<i?3I7q", 0x4004, True, 1, 0xF0000001, 0, 36864, size, size, 0, 0, 0, 0) + bytes(128) + extra
    (folder / "images/r2egym").mkdir(parents=True)
    name = images_lookup.repository_and_commit(toy.ids["total"])
    (folder / f"images/r2egym/{name}.sif").write_bytes((head.ljust(4096, b"\0") + entry).ljust(36864, b"\0") + payload)
    return folder / "images"


@pytest.mark.parametrize("name", BACKENDS)
def test_a_task_in_a_sif_is_repaired_and_graded(name: str, images: Path, toy: Toy) -> None:
    options: dict[str, Any] = toy.options | {"images": str(images), "backend": name}

    async def agent(box: ProgramSandbox) -> str:
        look = ("git log --format=%s; find / -name 'r2e_tests*' -o -name run_tests.sh 2>&1 | grep -v Permission; "
                ".venv/bin/python -c 'import tally; print(tally.total([1]))'")
        seen = await box.exec(["bash", "-c", look], timeout_s=60)
        await box.exec(["bash", "-c", "sed -i 's/return sum(values) + 1/return sum(values)/' tally.py"], timeout_s=60)
        assert seen.stdout == "task\n2\n", seen
        return await box.diff()

    async def run() -> list[Score]:
        environment = R2EGym(R2EGymConfig.model_validate(options))
        await environment.start()
        task = next(task for task in environment.tasks("train") if task.id == toy.ids["total"])
        box = await environment.open(task, mounts={}, sockets={})
        try:
            patch = await agent(box)
        finally:
            await box.close()
        assert patch.count("diff --git") == 1
        return [await environment.score(task, text) for text in (patch, "")]

    scores = asyncio.run(run())
    assert [score.reward for score in scores] == [1.0, 0.0], scores
    assert [score.counters for score in scores] == [{}, {}]
