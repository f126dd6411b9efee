"""A folder of small tasks as `grpo-bench tasks build` lays them out, made from a package of our own.

The package counts things; each task has one fault in it. ``fix`` gives the patch that mends it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

GOOD = '''"""Counting things."""


def total(values):
    return sum(values)


def mean(values):
    values = list(values)
    return total(values) / len(values) if values else 0


def most(values):
    return max(values, key=list(values).count)
'''
FAULTS = {"total": ("return sum(values)", "return sum(values) + 1"), "mean": ("if values else 0", "if values else 1"),
          "most": ("return max(", "return min(")}
HIDDEN = '''import pytest

from tally import mean, most, total


@pytest.mark.parametrize(("values", "result"), [([], 0), ([1, 2], 3)])
def test_total(values, result):
    assert total(values) == result


class TestMean:
    def test_of_some(self):
        assert mean([2, 4]) == 3

    def test_of_none(self):
        assert mean([]) == 0


def test_most():
    assert most([1, 2, 2]) == 2
'''
NAMES = ("test_total[values0-0]", "test_total[values1-3]", "TestMean.test_of_some", "TestMean.test_of_none",
         "test_most")
SCRIPT = ("PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' "
          ".venv/bin/python -W ignore -m pytest -rA r2e_tests\n")
GIT = {"GIT_AUTHOR_NAME": "task", "GIT_AUTHOR_EMAIL": "task@localhost", "GIT_COMMITTER_NAME": "task",
       "GIT_COMMITTER_EMAIL": "task@localhost", "GIT_AUTHOR_DATE": "2024-01-01T00:00:00Z",
       "GIT_COMMITTER_DATE": "2024-01-01T00:00:00Z", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
       "PATH": os.environ["PATH"]}


@dataclass
class Toy:
    """``folder`` has train.jsonl (``total`` and ``mean``), validation.jsonl (``most``) and images."""

    folder: Path
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the environment."""
        return {"train": str(self.folder / "train.jsonl"), "validation": str(self.folder / "validation.jsonl"),
                "images": str(self.folder / "images"), "backend": "bwrap"}

    def image(self, name: str) -> Path:
        return self.folder / "images" / self.ids[name]

    def fix(self, name: str) -> str:
        return self.patch(name, {"tally.py": GOOD})

    def patch(self, name: str, files: Mapping[str, str | None]) -> str:
        """The diff that writes these files (None: removes) in the task's repository, made by git."""
        copy = self.folder / "work"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.image(name) / "testbed", copy, symlinks=True)
        for path, text in files.items():
            target = copy / path
            if text is None:
                target.unlink()
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        git(copy, "add", "-A", "-f")
        made = git(copy, "diff", "--cached", "--binary", "HEAD")
        shutil.rmtree(copy)
        return made


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, env=GIT, check=True, capture_output=True, text=True)
    return done.stdout


def make_toy(folder: Path) -> Toy:
    toy = Toy(folder)
    venv = make_venv(folder / "venvs" / "toy")
    rows: dict[str, dict] = {}
    for name, (good, bad) in FAULTS.items():
        toy.ids[name] = f"toys__tally-{hashlib.sha1(name.encode()).hexdigest()}"
        rows[name] = row(toy.ids[name], name)
        image = toy.image(name)
        (image / "testbed").mkdir(parents=True)
        (image / "testbed" / "tally.py").write_text(GOOD.replace(good, bad))
        (image / "testbed" / "conftest.py").write_text("")
        git(image / "testbed", "init", "-q", "-b", "main")
        (image / "testbed" / ".venv").mkdir()
        (image / "testbed" / ".git" / "info" / "exclude").write_text(".venv\n")
        git(image / "testbed", "add", "-A")
        git(image / "testbed", "commit", "-q", "-m", "task")
        (image / "r2e_tests").mkdir()
        (image / "r2e_tests" / "__init__.py").write_text("")
        (image / "r2e_tests" / "test_tally.py").write_text(HIDDEN)
        (image / "run_tests.sh").write_text(SCRIPT)
        base = os.path.realpath(sys.base_prefix)
        binds = {"/testbed/.venv": str(venv)} | ({} if base == "/usr" else {base: base})
        lines = "\n".join(f"{json.dumps(inside)} = {json.dumps(host)}" for inside, host in binds.items())
        (image / "image.toml").write_text(f'schema = 1\nroot = "host"\n\n[binds]\n{lines}\n')
    write_rows(folder / "train.jsonl", [rows["total"], rows["mean"]])
    write_rows(folder / "validation.jsonl", [rows["most"]])
    return toy


def row(instance_id: str, fault: str, expected: Mapping[str, str] | None = None) -> dict:
    """A row in the benchmark's form."""
    commit = instance_id.rpartition("-")[2]
    columns = {
        "FAIL_TO_PASS": [], "PASS_TO_PASS": [], "repo_name": "tally", "commit_hash": commit, "docker_image": "",
        "parsed_commit_content": json.dumps({"the fix of": GOOD}), "execution_result_content": json.dumps(HIDDEN),
        "expected_output_json": json.dumps(dict.fromkeys(NAMES, "PASSED") if expected is None else expected),
    }
    metadata = {
        "instance_id": instance_id, "base_commit": commit, "dataset_name": "R2E-Gym/R2E-Gym-Subset", "split": "train",
        "problem_statement": f"The function {fault} of tally gives a wrong result.", "hints_text": "", "version": "",
        "created_at": "", "instance_dict": json.dumps(columns), "repo": "toys/tally",
    }
    return {"responses_create_params": {"input": [], "metadata": metadata, "model": "m", "temperature": 1.0,
                                        "top_p": 1.0},
            "agent_ref": {"type": "responses_api_agents", "name": "swe_agents_train"}}


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_venv(folder: Path) -> Path:
    """An environment of this interpreter with nothing but pytest in it, copied from where this one has it."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    base = Path(os.path.realpath(sys.base_prefix)) / "bin"
    for name in ("python", "python3", version):
        (folder / "bin" / name).symlink_to(base / version)
    (folder / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in distribution(name).files or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), packages / file)
    return folder
