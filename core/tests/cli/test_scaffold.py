"""``plugins new``: what it makes is clean, whole and passes its role's suite; of what it refuses nothing is left."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

from grpo_bench.cli import main, scaffold
from grpo_bench.contract import InputError, Role
from grpo_bench.registry import installed_plugins

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"
ROLES = [role.value for role in Role if role is not Role.FABRIC]


def make_all(folder: Path) -> list[Path]:
    return [scaffold.make_plugin(role, f"fresh_{role}", folder) for role in ROLES]


def files(folder: Path) -> set[str]:
    """Names of all files in it, but for what Python leaves behind when it runs them."""
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*")
            if file.is_file() and "__pycache__" not in file.parts}


def python(*arguments: str, folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    """Python in ``folder`` with the distributions unpacked in ``path`` installed beside all others."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder with a new plugin of each role, and one with the wheels built from them, unpacked."""
    folder = tmp_path_factory.mktemp("made")
    site, wheels = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("wheels")
    for project in make_all(folder):
        wheel = next(WheelBuilder(str(project)).build(directory=str(wheels), versions=["standard"]))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return folder, site


def test_every_new_plugin_passes_its_tests(made: tuple[Path, Path]) -> None:
    folder, site = made
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-W", "error", ".",
                  folder=folder, path=site)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 10 * len(ROLES)
    assert "failed" not in done.stdout and "xfailed" not in done.stdout


def test_what_is_made_is_clean(made: tuple[Path, Path]) -> None:
    folder, _ = made
    done = python("-m", "ruff", "check", "--no-cache", "--config", str(PYPROJECT), ".", folder=folder, path=folder)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("role", ROLES)
def test_what_is_made_is_whole(made: tuple[Path, Path], role: str) -> None:
    project = made[0] / f"fresh_{role}"
    assert {"pyproject.toml", "README.md", "registry.toml", "tests/test_conformance.py",
            f"src/grpo_fresh_{role}/py.typed"} <= files(project)
    metadata = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert metadata["entry-points"] == {f"grpo_bench.{role}": {f"fresh_{role}": f"grpo_fresh_{role}:plugin"}}
    imported = {name for file in (project / "src").rglob("*.py") for name in imports(file)}
    declared = {re.split(r"[^\w-]", item)[0].replace("-", "_") for item in metadata["dependencies"]}
    assert imported - sys.stdlib_module_names == declared
    assert not [name for name in files(project) if "$" in (project / name).read_text() and name != "README.md"]


def imports(file: Path) -> set[str]:
    """Top-level modules that a file imports, relative imports left out."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_every_method_says_what_is_demanded_of_it(made: tuple[Path, Path]) -> None:
    for role in ROLES:
        source = made[0] / f"fresh_{role}" / "src" / f"grpo_fresh_{role}" / f"{role}.py"
        (main_class,) = [node for node in ast.parse(source.read_text()).body
                         if isinstance(node, ast.ClassDef) and node.name == role.title()]
        methods = [node for node in main_class.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                   and not node.name.startswith("_")]
        assert methods and all(ast.get_docstring(method) for method in methods), source


def test_the_command_says_what_to_do_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugins", "new", "hardware", "two_words", "--dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    made = tmp_path / "two_words"
    for part in ("grpo-two-words", f"pip install -e {made}", "plugins check two_words --role hardware",
                 f"--registry {made / 'registry.toml'} --profile try-two_words"):
        assert part in said
    assert [item.name for item in tmp_path.iterdir()] == ["two_words"]


@pytest.mark.parametrize("name", [
    "", "Acme", "1st", "with-dash", "with space", "a.b", "../up", "class", "_x", "é", "x\n"])
def test_a_name_that_is_no_identifier_is_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(tmp_path, "agent", name, capsys) == f"grpo-bench: {name!r} cannot be a plugin's name: " \
        "it should be a Python identifier of lower-case letters, digits and _ that begins with a letter\n"


def test_a_name_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = next(plugin for plugin in installed_plugins() if plugin.role == "trainer")
    said = refused(tmp_path, "trainer", taken.name, capsys)
    assert f"the trainer {taken.name!r} is installed already, by {taken.distribution}" in said


def test_a_package_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a package grpo_bench is installed already" in refused(tmp_path, "trainer", "bench", capsys)


@pytest.mark.parametrize(("role", "part"), [("fabric", "no fabric can be made this way"),
                                            ("trianer", "no role 'trianer'; did you mean 'trainer'?")])
def test_a_role_that_cannot_be_made_is_refused(tmp_path: Path, role: str, part: str,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert part in refused(tmp_path, role, "fresh", capsys)


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_what_is_there_is_left_alone(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "fresh"
    {"folder": place.mkdir, "file": place.touch, "dangling link": lambda: place.symlink_to("nowhere")}[kind]()
    assert f"{place} exists already" in refused(tmp_path, "agent", "fresh", capsys)


def test_a_place_that_is_not_there_is_made(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there"
    assert main(["plugins", "new", "agent", "fresh", "--dir", str(place)]) == 0
    assert (place / "fresh" / "pyproject.toml").is_file()


def test_a_place_that_cannot_be_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "file"
    place.touch()
    assert main(["plugins", "new", "agent", "fresh", "--dir", str(place / "in")]) == 2
    assert capsys.readouterr().err == f"grpo-bench: cannot write {place / 'in' / 'fresh'}: Not a directory\n"


def test_nothing_is_left_of_what_could_not_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, written = Path.write_text, []

    def full_disk(path: Path, *arguments: Any, **options: Any) -> int:
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        written.append(path)
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full_disk)
    with pytest.raises(InputError, match=r"cannot write .*fresh: No space left on device"):
        scaffold.make_plugin("environment", "fresh", tmp_path)
    assert len(written) == 5 and list(tmp_path.iterdir()) == []


def refused(folder: Path, role: str, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a refusal with exit code 2, which leaves the folder as it was."""
    before = sorted(folder.iterdir())
    assert main(["plugins", "new", role, name, "--dir", str(folder)]) == 2
    assert sorted(folder.iterdir()) == before
    out, err = capsys.readouterr()
    assert not out
    return err
