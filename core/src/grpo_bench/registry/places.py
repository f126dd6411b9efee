"""Where registry files are. Imports nothing of the contract, so that listings need not wait for it."""

from __future__ import annotations

import os
from pathlib import Path

FILE_NAME = "registry.toml"
MAX_BYTES = 2**18
"""Size of a registry file; far above what a person writes."""


def packaged_file() -> Path:
    """The registry that comes with the core: package data of an installed one, the repository's own in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / FILE_NAME
    return installed if installed.is_file() else package.parents[2] / FILE_NAME


def user_file() -> Path:
    """Where a user's registry would be."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder, "grpo-bench", FILE_NAME)
