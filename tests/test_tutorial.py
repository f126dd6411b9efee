"""docs/writing-a-plugin.md does what it says: its commands are run and its files written, in order, in an environment
of their own that sees the packages of this one and no network; what it builds is what lies in ``examples/``."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = ROOT / "docs" / "writing-a-plugin.md"
EXAMPLES = ROOT / "examples"
STEP = re.compile(r"```console\n(?P<session>.*?)^```$|"
                  r"^\*\*\[`(?P<file>\S+)`\]\(\.\./examples/(?P<link>\S+)\)\*\*\n(?:\n```(?!console)\w+\n(?P<text>.*?)^```$)?",
                  re.DOTALL | re.MULTILINE)
LIMIT_S = 120
CACHES = {"__pycache__", ".pytest_cache"}


@dataclass(frozen=True)
class Step:
    """One command with the output it should have (empty: any), or one file with its content (None: the example's)."""

    line: int
    command: str = ""
    output: str = ""
    file: str = ""
    text: str | None = None


def steps() -> list[Step]:
    page, found = TUTORIAL.read_text(), []
    for match in STEP.finditer(page):
        line = page.count("\n", 0, match.start()) + 1
        if match["file"]:
            assert match["link"] == match["file"], f"line {line}: the link leads to another file"
            found.append(Step(line, file=match["file"], text=match["text"]))
        else:
            for command, output in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", match["session"], re.MULTILINE):
                found.append(Step(line, command=command, output=output))
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every step was taken; what they made ends up beside it."""
    folder = tmp_path_factory.mktemp("tutorial")
    environment = make_environment(folder / "venv")
    work = folder / "work"
    work.mkdir()
    for step in steps():
        if step.file:
            content = (EXAMPLES / step.file).read_text() if step.text is None else step.text
            (work / step.file).write_text(content)
        else:
            take(step, work, environment)
    return folder


def take(step: Step, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(["bash", "-c", step.command], cwd=folder, env=environment, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S)
    said = f"{TUTORIAL.name}:{step.line}: $ {step.command}\n{done.stdout}"
    if done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}: {said}", pytrace=False)
    flags, expected = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE, step.output.strip()
    if expected and not doctest.OutputChecker().check_output(expected, done.stdout.strip(), flags):
        pytest.fail(f"{said}instead of\n{expected}", pytrace=False)


def make_environment(folder: Path) -> dict[str, str]:
    """A virtual environment that also has this one's packages, and the variables that lead commands to it. Its pip
    builds with what is installed here and asks no index."""
    venv.create(folder, symlinks=True)
    python, site = folder / "bin" / "python", sysconfig.get_path("purelib")
    inside = next((folder / "lib").glob("python*/site-packages"))
    (inside / "here.pth").write_text(f"import site; site.addsitedir({site!r})\n")
    commands = {"pip": "-m pip --no-input --disable-pip-version-check", "pytest": "-m pytest -p no:cacheprovider",
                "grpo-bench": "-m grpo_bench"}
    for name, start in commands.items():
        more = " --no-index --no-build-isolation" if name == "pip" else ""
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{python}" -P {start} "$@"{more}\n')
        script.chmod(0o755)
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100",
            "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder / "config")}


def files(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*")
            if file.is_file() and not CACHES & set(file.parts)}


def test_what_the_tutorial_builds_is_the_example(built: Path) -> None:
    for name in ("katas", "numpy_qwen3"):
        assert files(built / name) == files(EXAMPLES / name)


def test_nothing_of_an_example_is_left_out() -> None:
    assert {step.file.partition("/")[0] for step in steps() if step.file} == {
        folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()}


def test_examples_import_public_names_only() -> None:
    public = ("grpo_bench.contract", "grpo_bench.steps", "grpo_bench.policy")
    sources = [file.read_text() for file in EXAMPLES.glob("*/src/**/*.py")]
    imported = {name for source in sources for name in re.findall(r"^(?:from|import) (grpo_bench[\w.]*)", source, re.M)}
    assert imported and all(name.startswith(public) for name in imported), imported


def test_files_that_are_shown_are_the_examples_files() -> None:
    shown = [step for step in steps() if step.text is not None]
    assert len(shown) > 4
    for step in shown:
        assert step.text == (EXAMPLES / step.file).read_text(), f"{TUTORIAL.name}:{step.line}: {step.file}"


def test_the_scaffolds_model_is_shown_as_it_is() -> None:
    template = ROOT / "core/src/grpo_bench/cli/templates/generator/src/PACKAGE/model.py.tmpl"
    assert f"```python\n{template.read_text()}```" in TUTORIAL.read_text()
