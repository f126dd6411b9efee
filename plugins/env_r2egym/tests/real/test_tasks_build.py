"""A task made of two releases that this test packs itself, through the real grading in real sandboxes."""

from __future__ import annotations

import argparse
import io
import json
import tarfile
from pathlib import Path

import pytest

from grpo_bench_env_r2egym import cli

pytestmark = pytest.mark.real("bwrap")
CHANGES = "1.1\n---\n\n- total() of nothing is 0\n\n1.0\n---\n\n- first\n"
GOOD, BAD = "def total(values):\n    return sum(values)\n", "def total(values):\n    return sum(values) or None\n"
TESTS = ("from tally import total\n\n\ndef test_some():\n    assert total([1, 2]) == 3\n\n\n"
         "def test_none():\n    assert total([]) == 0\n")


def release(folder: Path, name: str, version: str, code: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as tar:
        for path, text in {"tally.py": code, "tests/test_tally.py": TESTS, "CHANGES.rst": CHANGES,
                           "setup.py": "raise SystemExit('must not run')\n"}.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    cli.tasks(parser)
    parsed = parser.parse_args([str(argument) for argument in arguments])
    return parsed.verb(parsed)


def test_a_pair_becomes_a_task_once_and_a_pair_without_a_fault_is_refused(
        tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    for name, old in (("tally", BAD), ("same", GOOD)):
        release(out / "downloads", name, "1.0", old)
        release(out / "downloads", name, "1.1", GOOD)
    assert run("build", "--out", out, "tally==1.0..1.1", "same==1.0..1.1") == 1
    assert "refused same==1.0..1.1: no test fails before the fix" in capsys.readouterr().out
    first = {name: (out / name).read_bytes() for name in ("train.jsonl", "script.json", "manifest.json")}
    assert len(first["train.jsonl"].splitlines()) == 1 and len(list((out / "images").iterdir())) == 1
    assert not list(out.glob(".part*"))
    assert json.loads(first["manifest.json"])["tasks"][0]["fail_to_pass"] == ["test_none"]
    assert run("build", "--out", out, "tally==1.0..1.1") == 0
    assert "kept tally==1.0..1.1" in capsys.readouterr().out
    assert {name: (out / name).read_bytes() for name in first} == first
    assert run("verify", out / "train.jsonl", "--images", out / "images", "--grade") == 0
