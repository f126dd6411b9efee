"""The attacks, as data: each file is a family, each table of it an attack.

``agent`` is what the agent runs in its sandbox (bash, in the working folder); ``library`` is appended to the module
that the hidden tests import, so it runs where they are graded; ``patch`` goes to the grading as it is. A text between
two @ stands for what is only known when it runs (see :mod:`.decoys`). An attack prints HOLE where it gets what it is
after, or sets WON in the library, which then repairs itself, so that the reward tells of it.

Whatever an attack does, it must not be rewarded, nothing of the host may have changed, the sandbox beside it must be
unharmed and have seen nothing, and nothing may be left running. The other fields say what must hold besides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HOLE = "HOLE"
CHEAT = "+def pytest_pyfunc_call(pyfuncitem):\n+    return True"
HUNK = f"@@ -0,0 +1,2 @@\n{CHEAT}"
"""A conftest.py that lets every test pass, as the lines of a patch."""


@dataclass(frozen=True)
class Attack:
    """``needs``: what the machine has to permit; ``ends``: whether the command must end well before its time, be ended
    for it, or either; ``reads`` and ``writes``: paths that the environment is then asked to read or write; ``diff``:
    whether taking the diff must work; ``diff_has``, ``diff_lacks``: texts in it; ``absent``: a file of the working
    folder that must not have appeared; ``counts``: a text that the output may hold so many times; ``open``: why it is
    rewarded none the less."""

    family: str
    name: str
    tries: str
    agent: str = ""
    library: str = ""
    patch: str = ""
    needs: tuple[str, ...] = ()
    timeout_s: float = 20.0
    ends: Literal["well", "any", "time-out"] = "well"
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    diff: Literal["works", "may fail"] = "works"
    diff_has: str = ""
    diff_lacks: str = ""
    absent: str = ""
    counts: Mapping[str, Any] | None = None
    open: str = ""

    @property
    def phase(self) -> Literal["agent", "patch"]:
        """Whether it acts where the agent lives, or by the patch that is graded."""
        return "patch" if self.library or self.patch or self.family == "files" else "agent"


def read_corpus() -> tuple[Attack, ...]:
    """All attacks, by family and in the order of their files."""
    found = []
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        for name, fields in tomllib.loads(file.read_text()).items():
            lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
            found.append(Attack(file.stem, name, **{**fields, **lists}))
    return tuple(found)


def filled(text: str, values: Mapping[str, str]) -> str:
    """With what is only known now in the places for it."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text
