"""What the agent told the policy at the first request of a run: kept in its folder, compared with the benchmark's.

It is taken from the gateway, not from the program, and from before the policy's first reply.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from logging import Logger
from pathlib import Path
from typing import Any

from .benchmark import differences
from .config import OpenHandsConfig
from .inventory import digest


class Keeper:
    """Keeps and compares once per worker; of several workers the first one's is kept."""

    def __init__(self, config: OpenHandsConfig, run_folder: str, logger: Logger) -> None:
        self._exact = config.tools == "benchmark-exact"
        self._folder = Path(run_folder, "agent") if run_folder else None
        self._logger = logger
        self._done = False

    def keep(self, asked: Mapping[str, Any]) -> None:
        """RuntimeError where it has to be the benchmark's and is not."""
        if self._done:
            return
        prompt = _text(asked["messages"][0]["content"])
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder / "system_prompt.txt", prompt)
            _write(self._folder / "tools.json", json.dumps(asked["tools"], indent=2, ensure_ascii=False) + "\n")
        found = differences({tool["function"]["name"]: digest(tool) for tool in asked["tools"]},
                            hashlib.sha256(prompt.encode()).hexdigest())
        if found and self._exact:
            raise RuntimeError(f"the agent's first request is not the benchmark's: {'; '.join(found)}")
        if found:
            self._logger.warning("the agent is not the benchmark's: %s", "; ".join(found))
        self._done = True


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _write(path: Path, text: str) -> None:
    """A file that is there as a whole, written by the first."""
    if path.exists():
        return
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)
