import pytest
from grpo_bench_env_r2egym.grading.command import CommandError, parse
from grpo_bench_env_r2egym.grading.patch import CONTROL

from .toy import SCRIPT


def test_the_script_of_r2e_gym():
    found = parse(SCRIPT)
    assert found.env == {"PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning"}
    assert (found.interpreter, found.flags, found.arguments) == (
        ".venv/bin/python", ("-W", "ignore"), ("-rA", "r2e_tests"))


@pytest.mark.parametrize(("script", "interpreter", "arguments"), [
    ("#!/bin/bash\n\n# run\nset -e\ncd /testbed\npython3.9 -m pytest -rA r2e_tests", "python3.9", ("-rA", "r2e_tests")),
    (".venv/bin/pytest -rA 'r2e_tests/a b'\n", ".venv/bin/python", ("-rA", "r2e_tests/a b")),
    ("A=1 B='x y' python -B -X dev -m pytest\n", "python", ()),
])
def test_other_ways_to_run_pytest(script, interpreter, arguments):
    found = parse(script)
    assert (found.interpreter, found.arguments) == (interpreter, arguments)


@pytest.mark.parametrize(("script", "said"), [
    ("", "0 commands"), ("python -m pytest\npython -m pytest\n", "2 commands"), ("python run.py\n", "other than"),
    ("python -m pytest; true\n", "needs a shell"), ("python -m pytest || true\n", "needs a shell"),
    ("python -m pytest $ARGS\n", "needs a shell"), ("A=1\n", "runs nothing"), ("python -m 'pytest\n", "quotation"),
    ("python -m pytest > log\n", "needs a shell"), ("python -m unittest\n", "other than pytest"),
])
def test_scripts_that_do_something_else(script, said):
    with pytest.raises(CommandError, match=said):
        parse(script)


@pytest.mark.parametrize("path", [
    "conftest.py", "a/b/conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "setup.cfg",
    "sitecustomize.py", "src/usercustomize.py", "x.pth", "pytest.py", "pytest/__init__.py", "_pytest/runner.py",
    "src/pluggy/__init__.py", "r2e_tests/test_a.py", "r2e_tests", ".venv/bin/python", "run_tests.sh",
    "x.egg-info/entry_points.txt", "a/x.dist-info/METADATA", ".grading/run.py",
    "a\nb/conftest.py", "r2e_tests/a\nb",
])
def test_files_that_steer_the_tests(path):
    assert CONTROL.fullmatch(path)


@pytest.mark.parametrize("path", [
    "tally.py", "tests/test_a.py", "pytest_plugin.py", "docs/conftest.py.md", "setup.py", "pyproject.toml",
    "hypothesis/extra/pytestplugin.py", "a/r2e_tests_of.py", "x/pytest/a.py", "inifile.py", "venv/x.py",
])
def test_files_that_are_tested(path):
    assert not CONTROL.fullmatch(path)
