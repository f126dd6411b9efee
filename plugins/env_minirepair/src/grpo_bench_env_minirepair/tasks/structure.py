"""Which split a program belongs to.

The *structure* of a program is its source with every own identifier replaced by its order of first appearance and
every literal by a placeholder. Each split owns some of 16 buckets of the structure's hash: so no program of ``heldout``
or ``final``, however renamed and whatever its constants, is the solution of a task in ``pretrain`` or ``train``.
"""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Sequence

BUCKETS = 16
SPLITS: dict[str, frozenset[int]] = {
    "pretrain": frozenset(range(7, 16)),
    "train": frozenset(range(4, 7)),
    "heldout": frozenset({0, 1}),
    "final": frozenset({2, 3}),
}
_BUILT_IN = frozenset(
    {"abs", "divmod", "enumerate", "len", "list", "max", "min", "range", "reversed", "sorted", "sum", "zip"})
_TOKEN = re.compile(r"'[^']*'|\.?\b[A-Za-z_]\w*|\b\d+")


def structure(lines: Sequence[str]) -> str:
    """The program up to the choice of identifiers and literals."""
    renamed: dict[str, str] = {}

    def replace(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] == "'":
            return "S"
        if token[0].isdigit():
            return "N"
        if token[0] == "." or token in _BUILT_IN or keyword.iskeyword(token):
            return token
        return renamed.setdefault(token, f"v{len(renamed)}")

    return _TOKEN.sub(replace, "\n".join(lines))


def bucket(lines: Sequence[str]) -> int:
    return hashlib.sha256(structure(lines).encode()).digest()[0] % BUCKETS
