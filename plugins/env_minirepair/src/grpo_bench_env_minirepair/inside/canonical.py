"""One text per plain value, equal exactly where type and value are.

Results of candidate code leave the sandbox in this form and the grading process compares it with the form of the
expected value, so nothing that a candidate made is ever decoded, and no ``__eq__`` of its own is ever asked. Instances
of subclasses and anything that is not plain data have no form. -0.0 counts as 0.0, nan as nan.
"""

from __future__ import annotations

_DEPTH = 50


class NotPlain(ValueError):
    """The value is not plain data."""


def encode(value: object, depth: int = 0) -> str:
    """Text without line breaks; NotPlain for what is not plain data or nested deeper than 50."""
    if type(value) is int:
        return hex(value)
    if value is None or type(value) is bool:
        return str(value)
    if type(value) is float:
        return repr(value + 0.0)
    if type(value) is str or type(value) is bytes:
        return ascii(value)
    if type(value) is complex:
        return f"c({encode(value.real)},{encode(value.imag)})"
    if depth > _DEPTH:
        raise NotPlain("nested too deep")
    if type(value) is list:
        return "[" + ",".join([encode(item, depth + 1) for item in value]) + "]"
    if type(value) is tuple:
        return "(" + ",".join([encode(item, depth + 1) for item in value]) + ")"
    if type(value) is dict:
        pairs = [f"{encode(key, depth + 1)}:{encode(item, depth + 1)}" for key, item in value.items()]
        return "{" + ",".join(sorted(pairs)) + "}"
    if type(value) is set or type(value) is frozenset:
        return f"{type(value).__name__}(" + ",".join(sorted([encode(item, depth + 1) for item in value])) + ")"
    raise NotPlain(f"a {type(value).__name__} is not plain data")
