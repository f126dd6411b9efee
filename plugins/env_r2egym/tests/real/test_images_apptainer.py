"""SIF images made by Apptainer itself."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import pytest
from grpo_bench_env_r2egym import images_cli
from grpo_bench_env_r2egym.images_lookup import find_sif
from grpo_bench_sandbox.sif import squashfs_of, this_machine

pytestmark = pytest.mark.real("apptainer")

SHA = "0123456789abcdef0123456789abcdef01234567"


def test_image_folders_become_sifs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, out = tmp_path / "images", tmp_path / "out"
    for folder in ("bin", "etc", "tmp", "testbed"):
        (tmp_path / "rootfs" / folder).mkdir(parents=True)
    (tmp_path / "venv" / "lib").mkdir(parents=True)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for name in ("numpy__numpy", "pandas-dev__pandas"):
        folder = images / f"{name}-{SHA}"
        (folder / "testbed").mkdir(parents=True)
        (folder / "testbed" / "a.txt").write_text(name)
        (folder / "r2e_tests").mkdir()
        (folder / "r2e_tests" / "test_a.py").touch()
        (folder / "image.toml").write_text(f'schema = 1\nroot = "folder"\npath = "{tmp_path / "rootfs"}"\n'
                                           f'[binds]\n"/testbed/.venv" = "{tmp_path / "venv"}"\n')
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(
        {"repo_name": name, "commit_hash": SHA, "problem_statement": "It fails.",
         "expected_output_json": '{"t": "PASSED"}', "docker_image": f"docker-archive:{tmp_path}/none"}) + "\n"
        for name in ("numpy", "pandas")))
    parser = argparse.ArgumentParser()
    images_cli.fill(parser)

    def tasks_images(*argv: str | Path) -> int:
        arguments = parser.parse_args([str(item) for item in argv])
        return arguments.verb(arguments)

    assert tasks_images("build", file, "--out", out, "--from", "folder") == 0
    assert tasks_images("build", file, "--out", out, "--from", "folder") == 0
    assert "0 made, 2 there already" in capsys.readouterr().out
    image = find_sif(out, f"numpy__numpy-{SHA}", {})
    assert image is not None
    found = squashfs_of(image)
    assert found.arch == this_machine()
    listed = subprocess.run(["unsquashfs", "-offset", str(found.offset), "-l", str(image)], capture_output=True,
                            text=True, check=True).stdout
    assert "/testbed/a.txt" in listed and "/testbed/.venv/pyvenv.cfg" in listed and "r2e_tests" not in listed
    assert tasks_images("verify", file, "--images", out, "--full") == 0
    assert tasks_images("build", file, "--out", tmp_path / "other") == 1
    assert "apptainer ended with 255" in capsys.readouterr().out
