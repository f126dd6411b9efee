"""What a plugin wants to know of an environment: its inventory function, run by the environment's interpreter.

The function runs in a process of its own that finds grpo_bench, pluggy and the plugin's package beside the
environment's libraries, as a worker does. It may take as long as importing those libraries takes, so the answer is kept
in a file and holds while nothing it depends on changes: interpreter, installed packages, the sources of the function's
package, the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..contract import PlanError, WorkerEnv
from .envs_python import Interpreter, ask
from .envs_store import read_json, write_json

TIMEOUT_S = 600.0
"""Seconds after which an inventory is taken to hang."""
_CARRIED = ("grpo_bench", "pluggy")
_LINES = 8
_ASK = """
import importlib, json, os, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
module, _, name = sys.argv[1].partition(":")
with answer:
    answer.write(json.dumps(getattr(importlib.import_module(module), name)()))
"""


def inventory_of(python: str, env: WorkerEnv, file: Path) -> dict[str, Any]:
    """The inventory of ``env`` at an interpreter, from ``file`` where that still holds; it is kept there then."""
    found = ask(python)
    if isinstance(found, str):
        raise PlanError(f"environment {env.name!r}: {python} cannot be run: {found}")
    key = _key(found, env)
    kept = read_json(file)
    if kept.get("key") == key:
        return kept["inventory"]
    print(f"grpo-bench: asking {python} what it has; the answer is kept", file=sys.stderr, flush=True)
    inventory = _taken(python, env)
    with suppress(OSError):  # it is asked again then
        write_json(file, {"key": key, "inventory": inventory})
    return inventory


def _key(found: Interpreter, env: WorkerEnv) -> str:
    spec = find_spec(env.inventory.partition(":")[0])
    sources = []
    if spec is not None and spec.origin is not None:
        origin = Path(spec.origin)
        sources = [(str(path.relative_to(origin.parent)), path.read_bytes().hex())
                   for path in (sorted(origin.parent.rglob("*.py")) if spec.parent else [origin])]
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    parts = [found.path, found.version, found.stamps, env.inventory, sources, socket.gethostname(), devices]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _taken(python: str, env: WorkerEnv) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="grpo-bench-inventory-") as folder:
        for name in (*_CARRIED, env.inventory.partition(":")[0].partition(".")[0]):
            source = _source(name)
            Path(folder, source.name).symlink_to(source)
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        try:
            done = subprocess.run([python, "-P", "-c", _ASK, env.inventory], capture_output=True, text=True,
                                  errors="replace", timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "PYTHONPATH": path})
            words, answer = done.stderr, done.stdout
        except subprocess.TimeoutExpired:
            words, answer = f"no answer within {TIMEOUT_S:g} s", ""
    try:
        found = json.loads(answer)
    except ValueError:
        raise _failed(python, env, words) from None
    if not isinstance(found, dict):
        raise _failed(python, env, f"it returned no table but {answer:.60}")
    return found


def _failed(python: str, env: WorkerEnv, words: str) -> PlanError:
    lines = words.strip().splitlines()[-_LINES:]
    return PlanError(f"environment {env.name!r}: {env.inventory} does not work under {python}:\n  "
                     + "\n  ".join(lines), hint="that interpreter needs what the lock of the environment lists")


def _source(name: str) -> Path:
    """The folder, or file, of a top-level module."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise PlanError(f"package {name} is not there")
    origin = Path(spec.origin)
    return origin.parent if spec.submodule_search_locations else origin
