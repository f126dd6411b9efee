"""How a fork server is started under each isolation, and which of them this machine permits.

The server runs on the base interpreter of this one (a virtual environment's is only a link to it) and sees the standard
library without its site packages, nothing else. ``namespaces`` and ``process`` need no other program; ``bubblewrap``
serves where only that program may make namespaces.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_bench.contract import GrpoBenchError

ENVIRONMENT = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
_INSIDE = str(Path(__file__).resolve().parent / "inside")
_START = """\
import sys, types
package = types.ModuleType("inside")
package.__path__ = [sys.argv[1]]
sys.modules["inside"] = package
from inside.main import main
main(sys.argv[2], sys.argv[3].split(":"), sys.argv[4].split(":"))
"""
_START_S = 60
_ORDER = ("namespaces", "bubblewrap", "process")


class SandboxError(GrpoBenchError):
    """The sandbox itself failed; never a verdict on what ran in it."""


@functools.cache
def command(isolation: str) -> tuple[str, ...]:
    """argv of a fork server; run it with :data:`ENVIRONMENT`."""
    view, masks = _view()
    python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    around = _bubblewrap(python, view, masks) if isolation == "bubblewrap" else ()
    flags = ("-S", "-s", "-P", "-B", "-X", "utf8")
    return (*around, python, *flags, "-c", _START, _INSIDE, isolation, ":".join(view), ":".join(masks))


@functools.cache
def probe(isolation: str) -> tuple[str, Mapping[str, Any]]:
    """The isolation in force for a configured one, and the facts that its server states about itself.

    SandboxError with everybody's reason where none can be had.
    """
    reasons = []
    for name in _ORDER if isolation == "auto" else (isolation,):
        if name == "bubblewrap" and shutil.which("bwrap") is None:
            reasons.append("bubblewrap: not installed")
            continue
        try:
            done = subprocess.run(command(name), input=b"", capture_output=True, env=ENVIRONMENT,
                                  start_new_session=True, timeout=_START_S)
        except subprocess.TimeoutExpired:
            reasons.append(f"{name}: no answer within {_START_S} s")
            continue
        if done.returncode == 0 and done.stdout:
            return name, ast.literal_eval(done.stdout.decode()) | ({"refused": reasons} if reasons else {})
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        reasons.append(f"{name}: {lines[-1]}")
    raise SandboxError("no sandbox can be started: " + "; ".join(reasons),
                       hint='set environment.isolation = "auto" to fall back to what this machine permits')


def _view() -> tuple[list[str], list[str]]:
    """Folders of the standard library, and those inside them that hold other packages."""
    base = {"platbase": sys.base_exec_prefix, "base": sys.base_prefix}
    folders = [sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")]
    view = list(dict.fromkeys(os.path.realpath(folder) for folder in folders))
    return view, [f"{folder}/{name}" for folder in view for name in ("site-packages", "dist-packages")]


def _bubblewrap(python: str, view: list[str], masks: list[str]) -> list[str]:
    arguments = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL",
                 "--as-pid-1", "--die-with-parent", "--new-session", "--dev", "/dev"]
    for path in (*view, _INSIDE):
        arguments += ["--ro-bind", path, path]
    for path in (python, *_libraries(python)):
        arguments += ["--ro-bind", os.path.realpath(path), path]
    for path in masks:
        if os.path.isdir(path):
            arguments += ["--tmpfs", path]
    return [*arguments, "--remount-ro", "/", "--chdir", "/"]


def _libraries(python: str) -> list[str]:
    """Paths under which the loader finds the shared libraries of the interpreter and of its ctypes."""
    loader = ""
    found: list[str] = []
    extension = importlib.util.find_spec("_ctypes")
    for target in (python, extension.origin if extension else None):
        argv = [loader, target] if loader else [target]
        argv = [item for item in argv if item]
        traced = subprocess.run(argv, env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True)
        paths = [word for word in traced.stdout.split() if word.startswith("/") and os.path.exists(word)]
        loader = next((path for path in paths if os.path.basename(path).startswith("ld-")), loader)
        found += paths
    return list(dict.fromkeys(found))
