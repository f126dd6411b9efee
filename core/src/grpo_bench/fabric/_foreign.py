"""Workers under another interpreter than the engine's.

Such a worker finds three things of the engine's on its path, as links in a folder: grpo_bench, pluggy, and the
top-level package or module that its target is in. All else it imports has to be in its own environment. That has to
hold what grpo_bench itself needs in a worker: msgpack, numpy, pydantic and safetensors. Where a process ends before it
answers, :func:`explained` says what is wrong with the environment.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from grpo_bench.contract import PlanError, PluginError, WorkerLost
from grpo_bench.processes import start_process

_CARRIED = ("grpo_bench", "pluggy")
_OLDEST = (3, 11)
_VERSION = "import sys; print('%d.%d.%d' % tuple(sys.version_info[:3]))"
_ANSWER_S = 10.0
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


def carried(parent: Path, target: str) -> Path:
    """A folder under ``parent`` with nothing but the packages that a worker with this target needs of ours. Several
    processes may ask at once."""
    own = target.partition(":")[0].partition(".")[0]
    folder = parent / own
    if not folder.exists():
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".", dir=parent))
        for name in {*_CARRIED, own}:
            for path in _places(name):
                (made / path.name).symlink_to(path)
        try:
            made.rename(folder)
        except OSError:  # another was first
            shutil.rmtree(made)
    return folder


def _places(name: str) -> list[Path]:
    """The folder of a package, or the file of a module; none where the engine has no such: its environment has then."""
    spec = find_spec(name)
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(place) for place in list(spec.submodule_search_locations)[:1]]
    return [Path(spec.origin)] if spec.origin is not None and spec.has_location else []


async def explained(name: str, interpreter: str, error: WorkerLost) -> PluginError | PlanError:
    """The error to raise where worker process ``name`` ended under another interpreter before it answered."""
    found = await _version(interpreter)
    wanted = ".".join(map(str, _OLDEST))
    if found is not None and tuple(map(int, found.split(".")[:2])) < _OLDEST:
        return PlanError(f"worker {name} cannot be started with {interpreter}: it is Python {found}, and workers need "
                         f"{wanted} or newer", hint="build its environment with a newer Python")
    if (missing := _MISSING.search(error.remote_traceback)) is not None:
        return PlanError(f"worker {name} cannot be started with {interpreter}: {missing[1]} is not installed there",
                         hint="every worker needs msgpack, numpy, pydantic and safetensors in its environment")
    error.message = f"{error.message}; its interpreter is {interpreter}"
    return error


async def _version(interpreter: str) -> str | None:
    """The version of a python; None where it does not say."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            asked = await start_process(
                interpreter, "-c", _VERSION, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL)
            try:
                said, _ = await asked.communicate()
            finally:
                if asked.returncode is None:
                    asked.kill()
            found = re.fullmatch(r"\d+\.\d+\.\d+", said.decode(errors="replace").strip())
            return found[0] if found else None
    return None
