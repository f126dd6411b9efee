"""The mark ``real`` of this repository's tests: skipped by name, or run in the environments that they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .conftest import LOCK

REPOSITORY = Path(__file__).parents[3]
TESTS = """
import subprocess
import pytest

@pytest.mark.real("roomy")
def test_in_it(environment_python):
    code = "import os; print(os.getpid())"
    assert subprocess.run([environment_python("roomy"), "-c", code], check=True, capture_output=True).stdout

@pytest.mark.real("roomy", "spare")
def test_in_both():
    pass

def test_in_none():
    pass
"""


def pytest_says(rooms, *arguments: str, tests: str = TESTS, path: str = os.environ["PATH"]) -> str:
    """What pytest prints in a tree with the repository's conftest and these tests."""
    tree = rooms.workshop.folder / "tree"
    tree.mkdir(exist_ok=True)
    shutil.copy(REPOSITORY / "conftest.py", tree)
    (tree / "test_it.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-ra", "--strict-markers", "-p", "no:cacheprovider", *arguments]
    env = {**os.environ, "PYTHONPATH": str(rooms.workshop.site), "PATH": path}
    done = subprocess.run(command, cwd=tree, env=env, text=True, timeout=300, capture_output=True, check=False)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}"


def test_real_tests_are_skipped_by_name_and_run_where_their_environments_are_built(rooms) -> None:
    rooms.plugin(name="roomy")
    plain = pytest_says(rooms)
    assert "1 passed, 2 skipped" in plain and "exit code 0" in plain
    assert "needs roomy: make test-real" in plain
    assert "needs roomy, spare: make test-real" in plain

    missing = pytest_says(rooms, "--real", "-k", "in_it")
    assert "exit code 4" in missing
    assert "not built: roomy; run `grpo-bench env build roomy`, or `make test-real`" in missing

    rooms.pretend("roomy")
    assert "1 passed" in pytest_says(rooms, "--real", "-k", "in_it")
    assert "no installed plugin has an environment 'spare'" in pytest_says(rooms, "--real")


def test_an_environment_that_is_not_built_is_built_for_the_first_test_that_needs_it(rooms) -> None:
    rooms.plugin('schema = 1\npython = ">=3.11"\nsteps = [{packages = ["broken==1.0"]}]', name="late")
    chosen, tests = ("--real", "--build", "-k", "in_it or in_none"), TESTS.replace("roomy", "late")
    said = pytest_says(rooms, *chosen, tests=tests)
    assert "1 passed" in said and "1 error" in said and "environment 'late' could not be built" in said
    assert "`grpo-bench env build late` ended with 1; it said why" in said

    rooms.lock(LOCK)
    said = pytest_says(rooms, *chosen, "-n", "2", tests=tests)
    assert "2 passed" in said and said.count("building environment late") == 1


def test_tools_are_needed_too_and_rare_ones_are_skipped_by_name(rooms, tmp_path: Path) -> None:
    tools = """
import pytest

@pytest.mark.real("bwrap")
def test_with_bwrap():
    pass

@pytest.mark.real("apptainer", "bwrap")
def test_with_apptainer():
    pass
"""
    path = tmp_path / "bin"
    path.mkdir()
    bare = pytest_says(rooms, "--real", tests=tools, path=str(path))
    assert "exit code 4" in bare
    assert "not installed: bwrap; on Debian or Ubuntu: apt install bubblewrap" in bare
    several = pytest_says(rooms, "--real", "-n", "2", tests=tools, path=str(path))
    assert "2 errors" in several and "not installed: bwrap; on Debian or Ubuntu: apt install bubblewrap" in several
    (path / "bwrap").touch(0o755)
    some = pytest_says(rooms, "--real", tests=tools, path=str(path))
    assert "1 passed, 1 skipped" in some and "no Apptainer on PATH" in some
    assert "needs apptainer, bwrap: make test-real" in pytest_says(rooms, tests=tools, path=str(path))
