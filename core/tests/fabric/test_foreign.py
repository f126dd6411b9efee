"""Workers in an environment of their own: what they find there, what is said where something is missing, their end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

import grpo_bench
from grpo_bench.contract import DeadlineExceeded, PlanError, PluginError, WorkerLost

NEEDED = ("numpy", "numpy.libs", "msgpack", "pydantic", "pydantic_core", "annotated_types", "typing_extensions.py",
          "typing_inspection")
TARGETS = Path(__file__).parent
FACTS = """
import importlib.util
import os
import sys
import grpo_bench
from {package}.inner import VALUE
class Target:
    def __init__(self, context): pass
    def facts(self):
        found = [name for name in ("structlog", "fabric_targets", "grpo_bench_mock")
                 if importlib.util.find_spec(name) is not None]
        return [sys.prefix, os.path.realpath(grpo_bench.__path__[0]), VALUE, found]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment with what every worker needs, and without any package of this project."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        if (there := Path(np.__file__).parents[1] / name).exists():
            (site / name).symlink_to(there)
    return folder


@pytest.fixture
def python(environment):
    return str(environment / "bin" / "python")


@pytest.fixture
def only_here(tmp_path, monkeypatch):
    """A package that the engine's interpreter finds and the other one does not."""
    package = tmp_path / "here" / "target_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text("VALUE = 'from the engine'\n")
    (package / "worker.py").write_text(FACTS.format(package="target_package"))
    (package / "broken.py").write_text("import not_installed_anywhere\n")
    monkeypatch.syspath_prepend(str(package.parent))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pids, folder):
    return not any(map(alive, pids)) and not folder.exists()


def script(folder, text):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_worker_finds_its_targets_package_and_this_one_and_nothing_else_of_ours(in_local, spec, environment, python,
                                                                                 only_here):
    async def body(fabric):
        group = await fabric.start_group(spec(target="target_package.worker:Target", interpreter=python))
        first = await group.call(0, "facts")
        await group.restart(0)
        return first, await group.call(0, "facts")
    first, again = in_local(body)
    assert first == again == [str(environment), str(Path(grpo_bench.__path__[0]).resolve()), "from the engine", []]


def test_a_guest_finds_its_own_targets_package_too(in_local, spec, python, only_here):
    async def body(fabric):
        base = await fabric.start_group(spec("base", target="fabric_targets:Worker", interpreter=python))
        guest = await fabric.start_group(spec("guest", target="target_package.worker:Target", interpreter=python,
                                              colocate="base"))
        return await base.call(0, "add", 1, 2), (await guest.call(0, "facts"))[2]
    assert in_local(body) == (3, "from the engine")


def test_a_target_of_the_environment_itself_needs_nothing_of_ours(in_local, spec, environment, python):
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "only_there.py").write_text("class Target:\n    def __init__(self, context): pass\n"
                                        "    def one(self): return 1\n")

    async def body(fabric):
        return await (await fabric.start_group(spec(target="only_there:Target", interpreter=python))).call(0, "one")
    assert in_local(body) == 1


def test_a_target_that_lacks_a_library_says_which_and_where(in_local, spec, python, only_here):
    async def body(fabric):
        with pytest.raises(PluginError, match="No module named 'not_installed_anywhere'") as caught:
            await fabric.start_group(spec(target="target_package.broken:Target", interpreter=python))
        assert caught.value.hint == f"it runs under {python}"
    in_local(body)


def test_an_environment_that_lacks_what_every_worker_needs_is_named(in_local, spec, tmp_path):
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    python = str(tmp_path / "bare" / "bin" / "python")

    async def body(fabric):
        with pytest.raises(PlanError) as caught:
            await fabric.start_group(spec(interpreter=python))
        return caught.value
    error = in_local(body)
    assert error.message.startswith(f"worker a-0 cannot be started with {python}: ")
    assert error.message.endswith(" is not installed there")
    assert "msgpack, numpy, pydantic and safetensors" in error.hint


def test_an_old_python_is_named_with_its_version(in_local, spec, tmp_path):
    python = script(tmp_path, 'if [ "$1" = -c ]; then echo 3.9.2; else echo "Unknown option: -P" >&2; exit 2; fi')

    async def body(fabric):
        with pytest.raises(PlanError, match=r"it is Python 3\.9\.2, and workers need 3\.11 or newer"):
            await fabric.start_group(spec(interpreter=python))
    in_local(body)


def test_a_missing_shared_library_is_the_last_word(in_local, spec, tmp_path):
    says = "python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"
    python = script(tmp_path, f'echo "{says}" >&2; exit 127')

    async def body(fabric):
        with pytest.raises(WorkerLost) as caught:
            await fabric.start_group(spec(interpreter=python))
        return caught.value
    error = in_local(body)
    for part in ("worker process a-0 ended with exit code 127", says, f"its interpreter is {python}"):
        assert part in error.message
    assert "a-0.log" in error.hint


def test_an_interpreter_that_hangs_ends_at_the_groups_start_deadline(in_local, spec, tmp_path):
    python = script(tmp_path, "exec sleep 600")

    async def body(fabric):
        with pytest.raises(DeadlineExceeded, match=r"the start of worker group a took longer than 0\.5 s"):
            await fabric.start_group(spec(interpreter=python, start_deadline_s=0.5))
    in_local(body, grace_s=0.2)


def test_the_exception_is_shown_and_not_what_its_text_goes_on_with(in_local, spec, tmp_path):
    python = script(tmp_path, "printf 'Traceback (most recent call last):\\n  File \"x\"\\nImportError: no device\\n\\n"
                              "Original error was: driver\\n' >&2; exit 1")

    async def body(fabric):
        with pytest.raises(WorkerLost, match="its last output: ImportError: no device"):
            await fabric.start_group(spec(interpreter=python))
    in_local(body)


ENGINE = """
import asyncio, json, sys
from pathlib import Path
from grpo_bench.contract import GroupSpec, Placement
from grpo_bench.fabric import LocalFabric
class Clock:
    def now_utc(self): return "now"
async def main(folder, python):
    fabric = LocalFabric(Path(folder), Clock(), None)
    group = await fabric.start_group(GroupSpec("a", "fabric_targets:Worker", None, Placement(), interpreter=python))
    pids = [(await group.call(0, "identity"))[-1], *await group.call(0, "family")]
    print(json.dumps([group.address(0).endpoint, *pids]), flush=True)
    await group.call(0, "wait")
asyncio.run(main(*sys.argv[1:]))
"""


def test_grandchildren_in_sessions_of_their_own_end_with_a_killed_engine(tmp_path, python, until):
    env = {**os.environ, "PYTHONPATH": str(TARGETS)}
    command = [sys.executable, "-c", ENGINE, str(tmp_path), python]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env) as engine:
        assert engine.stdout is not None
        endpoint, *pids = json.loads(engine.stdout.readline())
        assert len({os.getsid(pid) for pid in pids}) == 3
        engine.send_signal(signal.SIGKILL)
    asyncio.run(until(lambda: gone(pids, Path(endpoint).parent)))
