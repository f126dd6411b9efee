"""``--set`` arguments: TOML in one line each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from ..contract import RegistryError
from .lines import line_of_endless_key
from .names import dotted, shown
from .source import EXTENDS, fault


def parse_overrides(arguments: Iterable[str]) -> dict[str, Any]:
    """``a.b=value`` arguments as one nested table; a value that is no TOML is a string."""
    result: dict[str, Any] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        usable = equals and "\n" not in key and not line_of_endless_key(argument)
        path = _override_key(key) if usable else ()
        if not path:
            raise RegistryError(f"--set {shown(argument)}: should have the form key=value, as in grpo.max_steps=10")
        if path[0] in ("profiles", EXTENDS):
            raise RegistryError(f"--set {shown(argument)}: {path[0]!r} cannot be set here",
                                hint="keys are those inside a profile, as in trainer.learning_rate")
        value = _override_value(text)
        if found := fault(value, path):
            raise RegistryError(f"--set {dotted(found[0])}: {found[1]}")
        table = result
        for part in path[:-1]:
            if not isinstance(table.get(part), dict):
                table[part] = {}
            table = table[part]
        table[path[-1]] = value
    return result


def _override_key(text: str) -> tuple[str, ...]:
    try:
        node: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return ()
    parts: list[str] = []
    while isinstance(node, dict) and len(node) == 1:
        (part, node), = node.items()
        parts.append(part)
    return tuple(parts) if node == 0 else ()


def _override_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    return parsed["value"] if parsed.keys() == {"value"} else text
