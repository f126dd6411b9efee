"""Environments of workers: built from a lock, found again, and what is said where one is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from grpo_bench.contract import GrpoBenchError, PlanError, WorkerEnv
from grpo_bench.registry.envs import build, built, known, locate, named, places
from grpo_bench.registry.envs_lock import read_lock
from grpo_bench.registry.envs_python import find_python

THIS = f"cp{sys.version_info.major}{sys.version_info.minor}"


def env_of(name: str = "tiny") -> WorkerEnv:
    return named(name)


def said(words: list[str]) -> str:
    return "\n".join(words)


def entries(cache: Path, name: str) -> set[str]:
    return {path.name.rpartition(f"-{THIS}")[2] for path in (cache / "grpo-bench/envs").glob(f"{name}-*")}


def test_a_built_environment_is_located_with_what_is_in_it(rooms, built_once: Path) -> None:
    rooms.plugin()
    words: list[str] = []
    place = build(env_of(), words.append)
    found = locate(env_of(), None)
    assert found.interpreter == str(place.python)
    assert place.key == f"{read_lock(env_of()).stem}-{THIS}"
    assert found.inventory == {"versions": {"tiny": "1.0"}, "prefix": str(place.folder)}
    assert "step 1 of 1, 1 package" in said(words)
    assert entries(built_once, "tiny") == {"", ".json", ".inventory.json", ".log"}
    code = "import beside, tiny; print(tiny.VERSION, beside.HERE)"
    done = subprocess.run([found.interpreter, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 True\n"
    script = subprocess.run([place.folder / "bin/pip", "--version"], capture_output=True, text=True, check=True)
    assert str(place.folder) in script.stdout


def test_building_again_builds_nothing_unless_it_must(rooms) -> None:
    rooms.plugin()
    place = build(env_of(), print)
    mark = place.folder / "mark"
    mark.touch()
    words: list[str] = []
    assert build(env_of(), words.append) == place
    assert mark.exists() and said(words) == f"environment tiny is built: {place.folder}"
    assert build(env_of(), print, force=True, python=rooms.copier) == place
    assert not mark.exists()


def test_the_inventory_is_taken_once_until_its_package_changes(rooms) -> None:
    rooms.plugin()
    build(env_of(), print)
    locate(env_of(), None)
    asked = rooms.asked
    assert locate(env_of(), "tiny") == locate(env_of(), None)
    assert rooms.asked == asked
    taker = rooms.workshop.site / "taker_tiny/__init__.py"
    taker.write_text(taker.read_text() + "\n# changed\n")
    locate(env_of(), None)
    assert rooms.asked == asked + 1
    (taker.parent / "inside").mkdir()
    (taker.parent / "inside/part.py").write_text("WHAT = 1\n")
    locate(env_of(), None)
    assert rooms.asked == asked + 2


def test_another_lock_is_another_environment(rooms) -> None:
    module = rooms.plugin()
    before = build(env_of(), print)
    rooms.lock((rooms.workshop.site / module / "env.toml").read_text() + "\n# another pin\n")
    assert built(env_of()) is None
    with pytest.raises(PlanError, match="'tiny' is not built for its present lock; run `grpo-bench env build tiny`"):
        locate(env_of(), None)
    assert before in places()


def test_an_environment_that_nobody_built(rooms) -> None:
    rooms.plugin(name="absent")
    with pytest.raises(PlanError, match="environment 'absent' is not built; run `grpo-bench env build absent`"):
        locate(env_of("absent"), None)


def test_an_environment_whose_interpreter_is_gone_is_not_built(rooms) -> None:
    rooms.plugin()
    place = build(env_of(), print)
    kept = os.readlink(place.python)
    place.python.unlink()
    place.python.symlink_to("/nowhere/python")
    assert built(env_of()) is None
    place.python.unlink()
    place.python.symlink_to(kept)
    assert built(env_of()) == place


def test_a_python_by_its_path(rooms, tmp_path: Path) -> None:
    rooms.plugin(name="elsewhere")
    own = tmp_path / "python"
    own.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    own.chmod(0o755)
    found = locate(env_of("elsewhere"), str(own))
    assert found.interpreter == str(own)
    assert found.inventory == {"versions": {"tiny": None}, "prefix": sys.prefix}
    assert locate(env_of("elsewhere"), str(own)) == found
    assert rooms.asked == 1


def test_the_environment_of_another_plugin(rooms) -> None:
    rooms.plugin()
    build(env_of(), print)
    other = WorkerEnv("other", env_of().lock, env_of().inventory)
    assert locate(other, "tiny").interpreter == locate(env_of(), None).interpreter
    with pytest.raises(PlanError, match=r"no installed plugin has an environment 'tinny'; did you mean 'tiny'\?"):
        locate(other, "tinny")


@pytest.mark.parametrize(("wanted", "message"), [
    ("/nowhere/python", "/nowhere/python cannot be run: No such file or directory"),
    ("/bin/false", "/bin/false cannot be run: it does not answer as Python does"),
    ("bin/python", "should be the name of an environment or the absolute path of a python"),
])
def test_a_path_that_is_no_python(rooms, wanted: str, message: str) -> None:
    rooms.plugin(name="elsewhere")
    with pytest.raises(PlanError, match=message):
        locate(env_of("elsewhere"), wanted)


@pytest.mark.parametrize(("inventory", "message"), [
    ("import solver_that_is_not_there", "ModuleNotFoundError: No module named 'solver_that_is_not_there'"),
    ("def take(): return 3", "it returned no table but 3"),
])
def test_an_inventory_that_fails_says_why(rooms, inventory: str, message: str) -> None:
    rooms.plugin(name="failing", inventory=inventory)
    with pytest.raises(PlanError, match=message) as caught:
        locate(env_of("failing"), sys.executable)
    assert "taker_failing:take does not work under" in caught.value.message


def test_a_plugin_that_cannot_be_loaded_hides_no_environment(rooms) -> None:
    rooms.plugin()
    rooms.workshop.distribution("test-broken", {"agent": {"broken": "plugin"}}, "raise RuntimeError")
    assert [(item.env.name, item.needed_by) for item in known() if item.env.name == "tiny"] == [
        ("tiny", ("generator roomy",))]


def test_a_name_with_two_locks_is_refused_by_name(rooms) -> None:
    rooms.plugin()
    source = (rooms.workshop.site / rooms.module / "__init__.py").read_text()
    rooms.workshop.distribution("test-rival", {"trainer": {"rival": "plugin"}},
                                source.replace('"roomy", Role.GENERATOR', '"rival", Role.TRAINER'))
    with pytest.raises(PlanError, match=r"means different locks: generator roomy: .*; trainer rival: ") as caught:
        named("tiny")
    assert "uninstall" in caught.value.hint


@pytest.mark.parametrize(("lock", "message"), [
    ("schema = 1\npython = '>=3.11'\n", "steps: Field required"),
    ("schema = 2\n", "schema: Input should be 1"),
    ("python = ", "no valid TOML"),
    ("schema = 1\npython = 'new'\nsteps = [{packages = ['a==1']}]", "python: should be a range of Python versions"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a>=1']}]",
     r"steps\[0\].packages\[0\]: 'a>=1' is no exact pin"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a==1.*']}]", "'a==1.[*]' is no exact pin"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a @ https://example.org/a.whl']}]", "is no exact pin"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a b']}]", "'a b' is no requirement"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = []}]", r"steps\[0\].packages: "),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a==1'], options = ['--index-url=x']}]",
     "says where packages come from"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a==1']}]\nfiles = {'../x.py' = ''}", "files"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a==1']}]\nimports = ['os; x']", r"imports\[0\]"),
    ("schema = 1\npython = '>=3.11'\nsteps = [{packages = ['a==1']}]\nprune = true", "prune: Extra inputs"),
])
def test_a_wrong_lock_is_an_error_of_its_package(rooms, lock: str, message: str) -> None:
    module = rooms.plugin(lock, name="wrong")
    with pytest.raises(PlanError, match=message) as caught:
        build(env_of("wrong"), print)
    assert f"environment 'wrong': its lock {module}/env.toml: " in caught.value.message
    assert caught.value.hint == "an error of that package"


def test_a_lock_that_is_not_there(rooms) -> None:
    module = rooms.plugin()
    with pytest.raises(PlanError, match="cannot be read"):
        read_lock(WorkerEnv("tiny", f"{module}/other.toml", "a:b"))
    with pytest.raises(PlanError, match="cannot be read"):
        read_lock(WorkerEnv("tiny", "package_that_is_not_there/env.toml", "a:b"))
    with pytest.raises(PlanError, match="is no name of an environment"):
        read_lock(WorkerEnv("../x", f"{module}/env.toml", "a:b"))


def test_no_interpreter_fits(rooms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms.plugin('schema = 1\npython = ">=3.99"\nsteps = [{packages = ["tiny==1.0"]}]', name="later")
    for name, text in {"python3.12": "exit 3", "python3.13": "echo shim: not found >&2"}.items():
        shim = tmp_path / "bin" / name
        shim.parent.mkdir(exist_ok=True)
        shim.write_text(f"#!/bin/sh\n{text}\n")
        shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PlanError, match="environment 'later' needs Python >=3") as caught:
        build(env_of("later"), print)
    own = "{}.{}.{}".format(*sys.version_info[:3])
    for words in (f" is {own}", "python3.12: it does not answer as Python does", "python3.13: shim: not found"):
        assert words in caught.value.message
    assert "--python PATH" in caught.value.hint
    with pytest.raises(PlanError) as caught:
        build(env_of("later"), print, python=sys.executable)
    assert caught.value.message == f"environment 'later' needs Python >=3.99; {sys.executable} is {own}"


@pytest.mark.parametrize(("variable", "folder"), [("PYENV_ROOT", "versions/3.29.4"),
                                                 ("UV_PYTHON_INSTALL_DIR", "cpython-3.29.4-linux-x86_64-gnu")])
def test_an_interpreter_that_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str,
                                                folder: str) -> None:
    python = tmp_path / folder / "bin/python3.29"
    python.parent.mkdir(parents=True)
    said = '{"version": "3.29.4", "able": true, "stamps": []}'
    python.write_text(f"#!/bin/sh\necho '{said}'\n")
    python.chmod(0o755)
    monkeypatch.setenv(variable, str(tmp_path))
    found = find_python("later", SpecifierSet(">=3.29,<3.30"))
    assert (found.path, found.version, found.tag) == (str(python), "3.29.4", "cp329")


def test_an_interpreter_beside_the_engines_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As where nobody says where pyenv keeps them, which the engine's own came from."""
    python = tmp_path / "3.29.4/bin/python3.29"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho '{\"version\": \"3.29.4\", \"able\": true, \"stamps\": []}'\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "3.11.7"))
    assert find_python("later", SpecifierSet(">=3.29,<3.30")).path == str(python)


def test_a_step_that_fails_leaves_its_output_and_nothing_else(rooms, built_once: Path) -> None:
    rooms.plugin('schema = 1\npython = ">=3.11"\nsteps = [{packages = ["tiny==1.0"]}, {packages = ["broken==1.0"]}]',
                 name="broken")
    with pytest.raises(GrpoBenchError, match="environment 'broken' could not be built: step 2 of 2") as caught:
        build(env_of("broken"), print, python=rooms.copier)
    assert "no compiler today" in caught.value.message and "ended with exit code 1" in caught.value.message
    log = next((built_once / "grpo-bench/envs").glob("broken-*.log"))
    assert str(log) in caught.value.hint and "Successfully installed tiny-1.0" in log.read_text()
    assert entries(built_once, "broken") == {".log"}
    assert built(env_of("broken")) is None


def test_what_does_not_import_is_not_built(rooms, built_once: Path) -> None:
    rooms.plugin('schema = 1\npython = ">=3.11"\nimports = ["tinier"]\nsteps = [{packages = ["tiny==1.0"]}]',
                 name="unfit")
    with pytest.raises(GrpoBenchError, match=r"(?s)importing what it is for: .*No module named 'tinier'"):
        build(env_of("unfit"), print, python=rooms.copier)
    assert entries(built_once, "unfit") == {".log"}


def test_a_cache_that_cannot_be_written(rooms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms.plugin()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(GrpoBenchError, match=r"cannot write .*tiny\.held") as caught:
        build(env_of(), print)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_builds_in_the_folder_of_an_image(rooms, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rooms.plugin()
    image, mine = tmp_path / "image", tmp_path / "mine"
    monkeypatch.setenv("GRPO_BENCH_ENVS", str(image))
    monkeypatch.setenv("XDG_CACHE_HOME", str(mine))
    place = build(env_of(), print, python=rooms.copier)
    assert (place.folder.parent, places(), mine.exists()) == (image, [place], False)
    place.inventory.unlink()
    asked, access = rooms.asked, os.access
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (image, os.W_OK) and access(path, mode))
    found = locate(env_of())
    assert found.interpreter == str(place.python) and locate(env_of()) == found
    assert rooms.asked == asked + 1 and not place.inventory.exists()
    assert len(list((mine / "grpo-bench/inventories").iterdir())) == 1


def test_a_plugin_with_a_second_environment(rooms) -> None:
    module = rooms.plugin()
    file = rooms.workshop.site / module / "__init__.py"
    second = f'envs=(WorkerEnv("tiny-cuda", {module!r} + "/cuda.toml", "taker_tiny:take"),),\n                env='
    file.write_text(file.read_text().replace("env=", second, 1))
    (file.parent / "cuda.toml").write_text((file.parent / "env.toml").read_text() + "\n# for GPUs\n")
    assert [(item.env.name, item.needed_by) for item in known() if "tiny" in item.env.name] == [
        ("tiny", ("generator roomy",)), ("tiny-cuda", ("generator roomy",))]
    place = build(named("tiny-cuda"), print, python=rooms.copier)
    assert locate(env_of(), "tiny-cuda").interpreter == str(place.python)
    assert place != build(env_of(), print, python=rooms.copier)
