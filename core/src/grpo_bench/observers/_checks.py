"""What a value in a journal may be. A check says what the value should be, or nothing where it is that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

Check = Callable[[Any], str]

_MOST_SECONDS, _MOST, _LARGEST, _DEEPEST = 1e10, 2**53, 1e15, 32


def text(value: Any) -> str:
    if not isinstance(value, str):
        return "be text"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "be text without lone surrogates"
    return ""


def moment(value: Any) -> str:
    """A time of day that can be set against another."""
    try:
        fits = datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        fits = False
    return "" if fits else "be a time in ISO 8601 with its offset from UTC"


def made_of(keys: Mapping[str, Check]) -> Check:
    """An object with at least these keys."""
    def each(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "be an object"
        for key, check in keys.items():
            if key not in value:
                return f"have {key}"
            if should := check(value[key]):
                return f"have under {key} what should {should}"
        return ""
    return each


def flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "be true or false"


def whole(value: Any) -> str:
    fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST
    return "" if fits else "be an integer below 2^53"


def count(value: Any) -> str:
    return "" if not whole(value) and value >= 0 else "be a count"


def seconds(value: Any) -> str:
    fits = _is_number(value) and 0 <= value <= _MOST_SECONDS
    return "" if fits else "be seconds: a finite number, 0 or more"


def figure(value: Any) -> str:
    fits = _is_number(value) and abs(value) <= _LARGEST
    return "" if fits else f"be a number between -{_LARGEST:g} and {_LARGEST:g}"


def number(value: Any) -> str:
    """Any at all: NaN and infinity too."""
    return "" if isinstance(value, float) or not whole(value) else "be a number"


def _is_number(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else not whole(value)


def anything(value: Any, depth: int = 0) -> str:
    """Free data: its texts must be writable, and nothing in it something that JSON has no word for."""
    if isinstance(value, str):
        return text(value)
    if depth > _DEEPEST:
        return "be less deeply nested"
    if isinstance(value, Mapping):
        inner = (*value.keys(), *value.values())
        return next((wrong for item in inner if (wrong := anything(item, depth + 1))), "")
    if isinstance(value, list | tuple):
        return next((wrong for item in value if (wrong := anything(item, depth + 1))), "")
    return "" if value is None or isinstance(value, int | float) else "be plain data"


def or_none(check: Check) -> Check:
    return lambda value: "" if value is None or not (should := check(value)) else f"{should}, or null"


def one_of(choices: type) -> Check:
    known = frozenset(str(choice) for choice in choices)  # type: ignore[attr-defined]
    return lambda value: "" if isinstance(value, str) and value in known else f"be one of {', '.join(sorted(known))}"


def map_of(check: Check) -> Check:
    def each(value: Any) -> str:
        if not isinstance(value, Mapping):
            return "be an object"
        for key, item in value.items():
            if should := text(key) or check(item):
                return f"have under {shown(key)} what should {should}"
        return ""
    return each


def list_of(check: Check) -> Check:
    def each(value: Any) -> str:
        if not isinstance(value, list | tuple):
            return "be a list"
        return next((f"hold items, each of which should {should}" for item in value if (should := check(item))), "")
    return each


def shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
