"""Images of tasks: which one is a task's, and making them over several attempts."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from grpo_bench.contract import InputError
from grpo_bench_env_r2egym import images_cli
from grpo_bench_env_r2egym.images import find_image
from grpo_bench_env_r2egym.images_lookup import find_sif
from grpo_bench_sandbox.sif import this_machine

SHA = "0123456789abcdef0123456789abcdef01234567"
ID = f"Numpy__NumPy-{SHA}"
R2E = {"dataset_name": "R2E-Gym/R2E-Gym-Subset"}
IN_ORDER = [f"numpy_final_{SHA}", ID, f"Numpy_1776_NumPy-{SHA}", f"numpy_1776_numpy-{SHA}", f"Numpy_s_NumPy-{SHA}",
            f"numpy_s_numpy-{SHA}"]
ARCHITECTURES = {"amd64": b"02", "arm64": b"04"}


def sif(payload: bytes) -> bytes:
    """A SIF for this machine whose root filesystem is ``payload``."""
    head = b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    head += struct.pack("<8q", 0, 0, 47, 48, 4096, 48 * 585, 36864, len(payload))
    extra = struct.pack("<2i3s", 1, 2, ARCHITECTURES[this_machine()])
    size = len(payload)
    entry = struct.pack("<i?3I7q", 0x4004, True, 1, 1, 0, 36864, size, size, 0, 0, 0, 0) + bytes(128) + extra
    return (head.ljust(4096, b"\0") + entry).ljust(36864, b"\0") + payload


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.mark.parametrize("folder", [".", "r2egym"])
def test_names_count_in_the_order_of_the_reference(tmp_path: Path, folder: str) -> None:
    images = [touch(tmp_path / folder / f"{name}.sif") for name in IN_ORDER]
    for image in images:
        found = find_sif(tmp_path, ID, R2E)
        assert found is not None and found.samefile(image)
        image.unlink()
    assert find_sif(tmp_path, ID, R2E) is None


def test_repository_and_commit_name_images_of_r2e_gym_only(tmp_path: Path) -> None:
    image = touch(tmp_path / f"numpy_final_{SHA}.sif")
    assert find_sif(tmp_path, ID, {"dataset_name": "another"}) is None
    assert find_sif(tmp_path, ID, {}) == image


def test_an_exact_name_anywhere_goes_before_a_name_that_contains_it(tmp_path: Path) -> None:
    part = touch(tmp_path / f"arm.{ID}.v2.sif")
    second = touch(tmp_path / f"b.{ID.lower()}.sif")
    exact = touch(tmp_path / "r2egym" / f"{ID}.sif")
    touch(tmp_path / f".{ID}.sif.part")
    touch(tmp_path / f".{ID}.sif")
    assert find_sif(tmp_path, ID, R2E) == exact
    exact.unlink()
    assert find_sif(tmp_path, ID, R2E) == part
    part.unlink()
    assert find_sif(tmp_path, ID, R2E) == second
    second.unlink()
    assert find_sif(tmp_path, ID, R2E) is None


def test_a_folder_is_listed_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    real = os.listdir

    def listdir(folder: str) -> list[str]:
        listed.append(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    for number in range(5):
        touch(tmp_path / f"x.owner__repo-{number:040x}.sif")
    os.utime(tmp_path, ns=(1, 1))
    for number in range(5):
        assert find_sif(tmp_path, f"owner__repo-{number:040x}", R2E) == tmp_path / f"x.owner__repo-{number:040x}.sif"
    assert listed == [str(tmp_path)]
    late = touch(tmp_path / f"x.owner__repo-{9:040x}.sif")
    assert find_sif(tmp_path, f"owner__repo-{9:040x}", R2E) == late
    assert len(listed) == 2


def rows(path: Path, *names: str) -> Path:
    """A file of R2E-Gym's own rows, one for each repository named."""
    lines = [{"repo_name": name, "commit_hash": SHA, "docker_image": f"registry/{name}:{SHA}" if name != "bare" else "",
              "problem_statement": "It fails.", "expected_output_json": '{"test_a": "PASSED"}'} for name in names]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def tasks_images(*argv: str | Path) -> int:
    parser = argparse.ArgumentParser()
    images_cli.fill(parser)
    arguments = parser.parse_args([str(item) for item in argv])
    return arguments.verb(arguments)


@pytest.fixture
def apptainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts programs for PATH in a folder that has nothing else; the one made by default copies a small SIF to where it
    is told and notes what it was asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "small.sif").write_bytes(sif(b"root filesystem"))

    def install(script: str) -> None:
        program = folder / "apptainer"
        program.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\ncd {tmp_path}\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(folder))
    return install


MAKE = 'echo "$4" >>asked; echo "a word of it"; cp small.sif "$3"'


def test_images_are_made_once_and_checked_afterwards(tmp_path: Path, apptainer: Callable[[str], None],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    apptainer(MAKE)
    file, out = rows(tmp_path / "tasks.jsonl", "numpy", "pandas", "scrapy"), tmp_path / "out"
    assert tasks_images("build", file, "--out", out, "--jobs", "3") == 0
    assert "3 made, 0 there already, 0 failed" in capsys.readouterr().out
    assert sorted((tmp_path / "asked").read_text().split()) == [
        f"docker://registry/{name}:{SHA}" for name in ("numpy", "pandas", "scrapy")]
    assert (out / "logs" / f"numpy__numpy-{SHA}.log").read_text() == "a word of it\n"
    (out / f"numpy__numpy-{SHA}.sif").unlink()
    (out / f"pandas-dev__pandas-{SHA}.sif").write_bytes(b"cut")
    assert tasks_images("build", file, "--out", out) == 0
    assert "2 made, 1 there already, 0 failed" in capsys.readouterr().out
    assert tasks_images("verify", file, "--images", out, "--full") == 0
    changed = out / f"scrapy__scrapy-{SHA}.sif"
    changed.write_bytes(sif(b"ROOT filesystem"))
    assert tasks_images("verify", file, "--images", out) == 0
    assert tasks_images("verify", file, "--images", out, "--full") == 1
    assert "its hash differs" in capsys.readouterr().out


def test_what_fails_is_named_and_leaves_nothing_behind(tmp_path: Path, apptainer: Callable[[str], None],
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    apptainer(f'case "$4" in *pandas*) echo half >"$3"; echo no such manifest >&2; exit 255;; *scrapy*) exit 0;; '
              f'*sympy*) echo broken >"$3";; *) {MAKE};; esac')
    file, out = rows(tmp_path / "tasks.jsonl", "numpy", "pandas", "scrapy", "bare", "sympy"), tmp_path / "out"
    assert tasks_images("build", file, "--out", out) == 1
    said = capsys.readouterr().out
    assert "1 made, 0 there already, 4 failed, of 5 tasks" in said
    assert f"apptainer ended with 255 (see {out / 'logs' / f'pandas-dev__pandas-{SHA}.log'})" in said
    assert f"its row has no docker_image:\n    bare__bare-{SHA}" in said
    assert "is no SIF image" in said
    log = (out / "logs" / f"pandas-dev__pandas-{SHA}.log").read_text()
    assert log == "no such manifest\napptainer ended with 255\n"
    assert sorted(path.name for path in out.iterdir()) == [".lock", "images.json", "logs", f"numpy__numpy-{SHA}.sif"]
    assert tasks_images("verify", file, "--images", out) == 1
    assert f"1 of 5 tasks in {file} have an image" in capsys.readouterr().out
    apptainer(MAKE)
    assert tasks_images("build", rows(file, "numpy", "pandas"), "--out", out) == 0
    assert "1 made, 1 there already, 0 failed" in capsys.readouterr().out


def test_an_image_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path, apptainer: Callable[[str], None],
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    apptainer("sleep 1000 & echo $! >child; wait")
    file, out = rows(tmp_path / "tasks.jsonl", "numpy"), tmp_path / "out"
    assert tasks_images("build", file, "--out", out, "--timeout-s", "3") == 1
    assert "took longer than 3 s" in capsys.readouterr().out
    state = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_without_the_programs_it_is_said_what_cannot_be_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    file = rows(tmp_path / "tasks.jsonl", "numpy")
    for origin, said in (("docker", "apptainer is not on PATH"), ("folder", "apptainer is not on PATH"),
                         ("sif", "unsquashfs is not on PATH")):
        assert tasks_images("build", file, "--out", tmp_path / "out", "--from", origin) == 1
        out = capsys.readouterr().out
        assert said in out and f"numpy__numpy-{SHA}" in out
    assert not (tmp_path / "out").exists()


def test_a_state_file_that_is_broken_is_not_overwritten(tmp_path: Path, apptainer: Callable[[str], None]) -> None:
    apptainer(MAKE)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "images.json").write_text("{")
    with pytest.raises(InputError, match=r"images\.json cannot be read"):
        tasks_images("build", rows(tmp_path / "tasks.jsonl", "numpy"), "--out", tmp_path / "out")
    assert (tmp_path / "out" / "images.json").read_text() == "{"


def test_only_an_image_folder_with_its_own_root_is_packed(tmp_path: Path, apptainer: Callable[[str], None],
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    apptainer(f'cp "$4" recipe; {MAKE}')
    file = rows(tmp_path / "tasks.jsonl", "numpy", "pandas", "scrapy")
    for name, root in (("numpy__numpy", "folder"), ("pandas-dev__pandas", "host")):
        folder = tmp_path / "images" / f"{name}-{SHA}"
        (folder / "testbed").mkdir(parents=True)
        (folder / "image.toml").write_text(f'schema = 1\nroot = "{root}"\npath = "rootfs"\nworkdir = "/testbed"\n')
        (folder / "r2e_tests").mkdir()
    assert tasks_images("build", file, "--out", tmp_path / "out", "--from", "folder") == 1
    said = capsys.readouterr().out
    assert "1 made" in said and "root is 'host'" in said and "no image folder" in said
    recipe = (tmp_path / "recipe").read_text()
    assert f"From: {tmp_path / 'images' / f'numpy__numpy-{SHA}' / 'rootfs'}\n" in recipe
    assert f"{tmp_path / 'images' / f'numpy__numpy-{SHA}' / 'testbed'} /testbed\n" in recipe
    assert "r2e_tests" not in recipe


@pytest.mark.skipif(shutil.which("mksquashfs") is None or shutil.which("unsquashfs") is None,
                    reason="squashfs-tools is not installed")
@pytest.mark.parametrize("script", ["testbed", "root", "."])
def test_a_sif_becomes_an_image_folder_for_bubblewrap(tmp_path: Path, script: str) -> None:
    root = tmp_path / "root"
    for name, text in (("testbed/a.txt", "one\n"), ("testbed/.venv/pyvenv.cfg", ""),
                       (f"{script}/run_tests.sh", "run\n"), ("r2e_tests/test_a.py", "secret\n"),
                       ("root/parsed_commit.json", "the fix")):
        touch(root / name).write_text(text)
    (root / "testbed" / "r2e_tests").symlink_to("/r2e_tests")
    for command in (["init", "-q"], ["add", "a.txt"], ["commit", "-q", "-m", "the fix"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], cwd=root / "testbed", check=True)
    subprocess.run(["mksquashfs", "root", "root.sqfs", "-quiet", "-no-progress"], cwd=tmp_path, check=True,
                   capture_output=True)
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    (images / f"numpy_final_{SHA}.sif").write_bytes(sif((tmp_path / "root.sqfs").read_bytes()))
    file = rows(tmp_path / "tasks.jsonl", "numpy")
    assert tasks_images("build", file, "--out", out, "--from", "sif") == 0
    image = find_image(out, f"numpy__numpy-{SHA}", R2E["dataset_name"])
    assert image is not None and image.tests is not None and image.script is not None and image.source is not None
    assert (image.image.root, image.image.path) == ("folder", out / f"numpy__numpy-{SHA}" / "rootfs")
    assert (image.tests / "test_a.py").read_text() == "secret\n" and image.script.read_text() == "run\n"
    said = subprocess.run(["git", "log", "--format=%s", "--name-only"], cwd=image.source, capture_output=True,
                          text=True)
    assert said.stdout.split() == ["task", "a.txt"]
    left = {str(path.relative_to(image.image.path or out)) for path in (image.image.path or out).rglob("*")}
    assert left == {"testbed", "root"}
    assert tasks_images("verify", file, "--images", out) == 0


@pytest.mark.skipif(shutil.which("mksquashfs") is None or shutil.which("unsquashfs") is None,
                    reason="squashfs-tools is not installed")
def test_a_sif_that_is_no_task_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touch(tmp_path / "root" / "testbed" / "a.txt")
    subprocess.run(["mksquashfs", "root", "root.sqfs", "-quiet", "-no-progress"], cwd=tmp_path, check=True,
                   capture_output=True)
    (tmp_path / f"numpy_final_{SHA}.sif").write_bytes(sif((tmp_path / "root.sqfs").read_bytes()))
    file = rows(tmp_path / "tasks.jsonl", "numpy", "pandas")
    assert tasks_images("build", file, "--out", tmp_path / "out", "--from", "sif", "--images", tmp_path) == 1
    said = capsys.readouterr().out
    assert "the image has no r2e_tests" in said and f"no SIF image of it in {tmp_path}:\n    pandas" in said
    assert not (tmp_path / "out" / f"numpy__numpy-{SHA}").exists()
