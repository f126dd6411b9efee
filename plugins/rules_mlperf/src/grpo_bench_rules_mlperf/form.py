"""One line of MLLOG: ``:::MLLOG`` and a JSON object with namespace, time, event type, key, value and metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = ":::MLLOG "
POINT, START, END = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_MOST_MS = 2**53
_MEMBERS = {"namespace": str, "time_ms": int, "event_type": str, "key": str, "value": object, "metadata": dict}


@dataclass(frozen=True, slots=True)
class Line:
    """``time_ms`` is milliseconds since 1970, UTC."""

    time_ms: int
    event_type: str
    key: str
    value: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return TOKEN + json.dumps({"namespace": "", "time_ms": self.time_ms, "event_type": self.event_type,
                                   "key": self.key, "value": self.value, "metadata": dict(self.metadata)},
                                  allow_nan=False)


def parse(text: str) -> Line:
    """Inverse of ``str``; ValueError says what is wrong with a line."""
    if not text.startswith(TOKEN):
        raise ValueError(f"does not begin with {TOKEN.strip()}")
    found = json.loads(text.removeprefix(TOKEN), parse_constant=_refuse)
    if not isinstance(found, dict) or found.keys() != _MEMBERS.keys():
        raise ValueError(f"should be an object of {', '.join(_MEMBERS)}")
    for name, kind in _MEMBERS.items():
        if not isinstance(found[name], kind) or (kind is int and isinstance(found[name], bool)):
            raise ValueError(f"{name} should be of type {kind.__name__}")
    if not 0 <= found["time_ms"] < _MOST_MS:
        raise ValueError(f"time_ms should be milliseconds since 1970, is {found['time_ms']}")
    return Line(found["time_ms"], found["event_type"], found["key"], found["value"], found["metadata"])


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
