"""Interpreters that an environment can be built with: the engine's own if it fits, else a ``pythonX.Y`` on PATH, else
one that pyenv or uv has installed.

Each is asked for its version before it is taken, since a name on PATH may be a stand-in that leads nowhere.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from ..contract import PlanError

_MINORS = range(30, 10, -1)
"""Minor versions of Python 3 to look for, newest first; workers need 3.11 at least."""
_INSTALLERS = (("PYENV_ROOT", "~/.pyenv", "versions/"),
               ("UV_PYTHON_INSTALL_DIR", "~/.local/share/uv/python", "cpython-"))
"""Where those that install many versions keep them: variable, usual folder, pattern of one."""
_ANSWER_S = 60.0
_ASK = """
import json, os, sys
stamps = [[path, os.stat(path).st_mtime_ns] for path in sys.path if os.path.isdir(path)]
try:
    import ensurepip, venv
    able = True
except ImportError:
    able = False
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "able": able, "stamps": stamps}))
"""


@dataclass(frozen=True)
class Interpreter:
    """One that answered. ``able``: it can make environments; ``stamps`` change when what it can import does."""

    path: str
    version: str
    able: bool
    stamps: tuple[Any, ...]

    @property
    def tag(self) -> str:
        return "cp{}{}".format(*self.version.split("."))


def engine_tag() -> str:
    """The tag of the engine's own interpreter."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}"


def ask(path: str) -> Interpreter | str:
    """What an interpreter says of itself; the reason, in words, where it does not answer."""
    try:
        done = subprocess.run([path, "-c", _ASK], capture_output=True, text=True, timeout=_ANSWER_S, check=False,
                              stdin=subprocess.DEVNULL, cwd=os.sep)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(getattr(error, "strerror", None) or error)
    try:
        said = json.loads(done.stdout)
        return Interpreter(path, said["version"], said["able"], tuple(map(tuple, said["stamps"])))
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        return lines[-1] if lines else "it does not answer as Python does"


def find_python(name: str, versions: SpecifierSet, wanted: str | None = None) -> Interpreter:
    """An interpreter for environment ``name``: ``wanted`` or, where that is None, the first that fits."""
    seen: list[str] = []
    for path in (wanted,) if wanted else _candidates():
        found = ask(path)
        if isinstance(found, str):
            seen.append(f"{path}: {found}")
        elif not versions.contains(found.version):
            seen.append(f"{path} is {found.version}")
        elif not found.able:
            seen.append(f"{path} has no venv module (on Debian or Ubuntu: apt install python3-venv)")
        else:
            return found
    raise PlanError(f"environment {name!r} needs Python {versions}; {'; '.join(dict.fromkeys(seen))}",
                    hint="install one that fits, or name it with --python PATH")


def _candidates() -> Iterator[str]:
    """The base of the engine's interpreter, then what PATH has, then what others have installed, beside it too."""
    yield os.path.join(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    for minor in _MINORS:
        if path := shutil.which(f"python3.{minor}"):
            yield path
    places = [(Path(os.environ.get(variable) or os.path.expanduser(usual)), versions)
              for variable, usual, versions in _INSTALLERS]
    beside = Path(sys.base_prefix).parent
    places += [(beside, ""), (beside, "cpython-")]
    for minor in _MINORS:
        for folder, versions in places:
            yield from map(str, sorted(folder.glob(f"{versions}3.{minor}.*/bin/python3.{minor}")))
