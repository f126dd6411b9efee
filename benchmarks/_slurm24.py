"""A newer Slurm than the machine's own: Debian 13's 24.11, which knows blocks and segments, in a folder of its own.

``debootstrap`` fills it once, in a minute, under the user's cache; a rig then lives in it (``Layout.root``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.slurm.rig import lacking

_RELEASE = "trixie"
_PACKAGES = ("slurm-wlm", "munge", "iproute2",
             "libbz2-1.0", "libffi8", "libncursesw6", "libreadline8t64", "libsqlite3-0", "libssl3t64", "libuuid1")
"""Slurm, and the libraries that a Python of the machine's finds there."""


def absent() -> str | None:
    """Why it cannot be had here; None where it can."""
    if (reason := lacking()) is not None:
        return reason
    if sys.base_prefix == "/usr":
        return "needs a Python outside /usr, which is another one in there"
    return None if shutil.which("debootstrap") or _folder().exists() else "not installed: debootstrap"


def system() -> Path:
    """The folder of that system, made where there is none."""
    folder = _folder()
    if not folder.exists():
        print(f"filling {folder} with Debian {_RELEASE} and its Slurm (a minute, once)", file=sys.stderr)
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}", _RELEASE, unfinished],
                       check=True, stdout=sys.stderr)
        unfinished.rename(folder)
    return folder


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "grpo-bench" / f"slurm-{_RELEASE}"
