"""For every test of the repository: property tests are bounded by examples, never by time, and SIGINT interrupts.

Tests of real parts are marked ``real(NAME, ...)`` with what they need: environments of workers, tools on PATH. Without
``--real`` they are skipped, each with that reason; with it, an environment that is not built or a tool that is missing
ends the session before any test, or fails each of them where several processes (``-n``) share the session. Only what a
machine may be unable to have is skipped by name then too. ``--build`` builds an environment when the first test that
needs it is about to run; the other processes go on meanwhile, or wait where they need the same one.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from grpo_bench_hw_cluster import reproducible
from hypothesis import HealthCheck, settings

_EXAMPLES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _EXAMPLES, derandomize=True)
settings.register_profile("search", _EXAMPLES, max_examples=2000)
settings.load_profile("same")

os.environ.pop("GRPO_BENCH_SITE", None)  # the tests name their own
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)  # pytest's readline hands them to its processes, where there is no terminal
os.environ.update(reproducible())  # workers get this from their hardware, those in the tests' own process from here

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job in the background, whose children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


TOOLS = {"bwrap": "bubblewrap", "git": "git", "tmux": "tmux"}
"""Programs that tests need, with the packages that bring them."""


def _no_apptainer() -> str | None:
    return None if shutil.which("apptainer") else "no Apptainer on PATH; few distributions package it"


def _no_slurm() -> str | None:
    from tests.slurm.rig import lacking

    return lacking()


def _no_ray() -> str | None:
    return None if find_spec("ray") else "no package ray in this environment"


RARE: dict[str, Callable[[], str | None]] = {"apptainer": _no_apptainer, "ray": _no_ray, "slurm": _no_slurm}
"""What a machine may be unable to have, with what says why it has not."""


_LACKING = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--real", action="store_true", help="run the tests that need environments of their own; see "
                     "`grpo-bench env list`")
    parser.addoption("--build", action="store_true", help="with --real: build environments that are not built")
    parser.addoption("--build-index", metavar="URL", help="package index for pip to ask besides those of its settings")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real(*names): needs these environments of workers and tools; runs under --real "
                            "only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    needs = {item: _needs(item) for item in items if item.get_closest_marker("real") is not None}
    if config.getoption("--real"):
        needed = {name for names in needs.values() for name in names}
        lacking = {name: why for name in needed & RARE.keys() if (why := RARE[name]()) is not None}
        for item, names in needs.items():
            for name in sorted(names & lacking.keys()):
                item.add_marker(pytest.mark.skip(reason=f"{name}: {lacking[name]}"))
        try:
            _check_there(sorted(needed - RARE.keys()), build=bool(config.getoption("--build")))
        except pytest.UsageError as error:
            if not hasattr(config, "workerinput"):  # a process among several cannot end the session in good order
                raise
            config.stash[_LACKING] = str(error)
        return
    for item, names in needs.items():
        item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(sorted(names))}: make test-real"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Builds are made outside a test's own time, which has a limit."""
    for name in _to_build(item):
        _build(name, item.config)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if (lacking := item.config.stash.get(_LACKING, "")) and item.get_closest_marker("real") is not None:
        pytest.fail(lacking, pytrace=False)
    for name in _to_build(item):
        if error := _build(name, item.config):
            pytest.fail(error, pytrace=False)


def _to_build(item: pytest.Item) -> list[str]:
    """The environments that a test needs, where it is to run and they may be built."""
    may = item.config.getoption("--real") and item.config.getoption("--build")
    if not may or item.get_closest_marker("real") is None or item.get_closest_marker("skip") is not None:
        return []
    return sorted(_needs(item) - TOOLS.keys() - RARE.keys())


@cache
def _build(name: str, config: pytest.Config) -> str:
    """Build an environment, unless it is there; returns what went wrong. What it says is shown at once. Nothing is
    byte-compiled before it is imported: to pip, PIP_NO_COMPILE=0 means yes."""
    index = config.getoption("--build-index")
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    command = [sys.executable, "-m", "grpo_bench", "env", "build", name, *(["--index", index] if index else [])]
    with capture.global_and_fixture_disabled():
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, stdout=sys.stderr,
                              env={**os.environ, "PIP_NO_COMPILE": "0"})
    return f"`grpo-bench env build {name}` ended with {done.returncode}; it said why" if done.returncode else ""


def _needs(item: pytest.Item) -> set[str]:
    names = {name for mark in item.iter_markers("real") for name in mark.args}
    if not names:
        raise pytest.UsageError(f"{item.nodeid}: the mark real names nothing")
    return names


def _check_there(names: list[str], *, build: bool) -> None:
    from grpo_bench.contract import PlanError
    from grpo_bench.registry.envs import built, named

    if tools := [name for name in names if name in TOOLS and shutil.which(name) is None]:
        packages = " ".join(TOOLS[name] for name in tools)
        raise pytest.UsageError(f"not installed: {', '.join(tools)}; on Debian or Ubuntu: apt install {packages}")
    try:
        missing = [name for name in names if name not in TOOLS and built(named(name)) is None]
    except PlanError as error:
        raise pytest.UsageError(error.message) from None
    if missing and not build:
        raise pytest.UsageError(f"not built: {', '.join(missing)}; run `grpo-bench env build {' '.join(missing)}`, or "
                                "`make test-real`, which does")


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder in the place of /tmp: its path is short, as sockets need it; ``tmp_path`` is long in one of several
    processes."""
    with TemporaryDirectory(prefix="gb-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def environment_python() -> Callable[[str], str]:
    """``environment_python("vllm")`` is the interpreter of that built environment."""
    from grpo_bench.registry.envs import locate, named

    return lambda name: locate(named(name)).interpreter
