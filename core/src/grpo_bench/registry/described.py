"""Settings in words: what a field of a model may be, what it is by default, what it means.

All is read from the model's JSON schema, so that a page, a listing and the model itself cannot disagree. Values read as
one types them into a registry file: ``"off"`` where the model says None.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from .validate import OFF

_NAMES = {"string": "text", "boolean": "true | false", "object": "table"}


@dataclass(frozen=True, slots=True)
class Described:
    """One field. ``default`` is JSON data; ``shown`` is it in words, ``required`` where there is none."""

    key: str
    type: str
    required: bool
    default: Any
    shown: str
    description: str


def described(model: type[BaseModel]) -> Iterator[Described]:
    """Every field of a settings model, in its order."""
    schema = model.model_json_schema()
    tables = schema.get("$defs", {})
    required = schema.get("required", ())
    for key, field in schema.get("properties", {}).items():
        default = field.get("default")
        shown = "required" if key in required else _default(field, tables)
        type_ = type_words(field, tables)
        text = " ".join(field.get("description", "").replace("``", "").split())
        if json.dumps(OFF) in type_:
            text = re.sub(r"\bNone\b", json.dumps(OFF), text)
        yield Described(key, type_, key in required, default, shown, text)


def type_words(schema: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    """The values that a JSON schema allows: ``integer from 1 to 9``, ``"sync" | "async"``, ``text or "off"``."""
    if "$ref" in schema:
        return type_words(tables[schema["$ref"].rpartition("/")[2]], tables)
    if "anyOf" in schema:
        kinds = [item for item in schema["anyOf"] if item.get("type") != "null"]
        words = [type_words(item, tables) for item in kinds]
        off = len(kinds) < len(schema["anyOf"]) and not _says_off(schema, tables)
        return " or ".join([*words, json.dumps(OFF)] if off else words)
    if choices := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return " | ".join(json.dumps(choice) for choice in choices)
    kind: str = schema.get("type", "any value")
    if kind == "array":
        return _array(schema, tables)
    keys = ", ".join(schema.get("properties", ()))
    return _NAMES.get(kind, kind) + _bounds(schema) + (f" ({keys})" if keys else "")


def _array(schema: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        words = [type_words(item, tables) for item in schema["prefixItems"]]
        return f"list of {len(words)}, each {words[0]}" if len(set(words)) == 1 else f"list of: {'; '.join(words)}"
    return f"list, each {type_words(schema.get('items', {}), tables)}"


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f" from {_figure(low)} to {_figure(high)}"
    words = [f"{word} {_figure(schema[key])}" for key, word in (
        ("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("exclusiveMaximum", "below"))
        if key in schema]
    return f" {', '.join(words)}" if words else ""


def _figure(value: float) -> str:
    return f"{value:,}" if abs(value) >= 1000 and value == int(value) else f"{value:g}"


def _default(field: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value is None:
        return "not set" if "default" not in field or _says_off(field, tables) else json.dumps(OFF)
    return json.dumps(value)


def _says_off(schema: Mapping[str, Any], tables: Mapping[str, Any]) -> bool:
    """Whether the text itself is one of the values that the key may take, and None cannot be written."""
    if "$ref" in schema:
        schema = tables[schema["$ref"].rpartition("/")[2]]
    return OFF in (schema.get("enum") or ()) or schema.get("const") == OFF or any(
        _says_off(item, tables) for item in schema.get("anyOf", ()))
