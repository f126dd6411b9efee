"""How values cross a process boundary: msgpack with raw array buffers, or JSON.

Both forms keep types: tuples stay tuples, enums enums, the contract's dataclasses themselves, arrays their dtype and
shape. Only what is registered here can cross; nothing on the wire names code to run, so that interpreters and
versions may differ and a damaged message can at worst be refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np

from . import errors, events, fabric, roles, values

_ARRAY, _TUPLE, _RECORD, _ENUM, _PATH, _SET, _INT = range(1, 8)
_TAGS = frozenset({"$type", "$array", "$tuple", "$enum", "$float", "$path", "$map"})
_DTYPES = frozenset({"bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"})


def _types_of(*modules: Any) -> dict[str, type[Any]]:
    found = (item for module in modules for item in vars(module).values() if isinstance(item, type))
    return {item.__name__: item for item in found
            if item.__module__.startswith("grpo_bench.contract") and (is_dataclass(item) or issubclass(item, Enum))}


_KNOWN = _types_of(values, roles, fabric, errors, events)


def pack(value: Any) -> bytes:
    """Serialise to msgpack; TypeError names a value of a type that cannot cross."""
    return cast(bytes, msgpack.packb(value, default=_to_ext, strict_types=True, use_bin_type=True))


def unpack(data: bytes | memoryview) -> Any:
    """Inverse of :func:`pack`. Arrays are read-only views of ``data``."""
    return msgpack.unpackb(data, ext_hook=_from_ext, raw=False, strict_map_key=False, use_list=True)


def _to_ext(value: Any) -> msgpack.ExtType:
    if isinstance(value, np.ndarray):
        _check_dtype(value.dtype.name)
        head = pack([value.dtype.name, list(value.shape)])
        native = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
        raw = native.reshape(-1).view(np.uint8).data  # first, so that it is aligned when read
        return msgpack.ExtType(_ARRAY, b"".join((raw, head, len(head).to_bytes(2, "little"))))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return msgpack.ExtType(_TUPLE, pack(list(value)))
    if isinstance(value, Enum) and type(value).__name__ in _KNOWN:
        return msgpack.ExtType(_ENUM, pack([type(value).__name__, value.value]))
    if is_dataclass(value) and type(value).__name__ in _KNOWN:
        content = {item.name: getattr(value, item.name) for item in fields(value)}
        return msgpack.ExtType(_RECORD, pack([type(value).__name__, content]))
    if isinstance(value, Path):
        return msgpack.ExtType(_PATH, pack(str(value)))
    if isinstance(value, frozenset | set):
        return msgpack.ExtType(_SET, pack(sorted(value)))
    if isinstance(value, int):
        return msgpack.ExtType(_INT, str(int(value)).encode())
    if isinstance(value, Mapping):
        return dict(value)  # type: ignore[return-value]
    raise TypeError(f"a {type(value).__qualname__} cannot cross a worker boundary: {value!r:.80}")


def _from_ext(code: int, data: bytes) -> Any:
    return _DECODERS[code](data)


def _read_array(data: bytes) -> np.ndarray[Any, Any]:
    end = len(data) - 2
    start = end - int.from_bytes(data[end:], "little")
    dtype, shape = unpack(data[start:end])
    _check_dtype(dtype)
    return np.frombuffer(memoryview(data)[:start], dtype=dtype).reshape(shape)


def _read_record(data: bytes) -> Any:
    name, content = unpack(data)
    return _known(name)(**content)


def _read_enum(data: bytes) -> Any:
    name, value = unpack(data)
    return _known(name)(value)


_DECODERS: dict[int, Callable[[bytes], Any]] = {
    _ARRAY: _read_array,
    _TUPLE: lambda data: tuple(unpack(data)),
    _RECORD: _read_record,
    _ENUM: _read_enum,
    _PATH: lambda data: Path(unpack(data)),
    _SET: lambda data: frozenset(unpack(data)),
    _INT: lambda data: int(data),
}


def to_jsonable(value: Any) -> Any:
    """Plain JSON data (no NaN literals) that :func:`from_jsonable` turns back into an equal value."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None or (kind is float and math.isfinite(value)):
        return value
    if kind is dict and _TAGS.isdisjoint(value):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, np.ndarray):
        _check_dtype(value.dtype.name)
        return {"$array": value.dtype.name, "shape": list(value.shape), "data": to_jsonable(value.ravel().tolist())}
    if isinstance(value, Enum) and type(value).__name__ in _KNOWN:
        return {"$enum": type(value).__name__, "value": value.value}
    if isinstance(value, tuple):
        return {"$tuple": [to_jsonable(item) for item in value]}
    if isinstance(value, Path):
        return {"$path": str(value)}
    if is_dataclass(value) and type(value).__name__ in _KNOWN:
        content = {item.name: to_jsonable(getattr(value, item.name)) for item in fields(value)}
        return {"$type": type(value).__name__, **content}
    if isinstance(value, Mapping):
        plain = {str(key): to_jsonable(item) for key, item in value.items()}
        return {"$map": plain} if _TAGS & value.keys() else plain
    raise TypeError(f"a {type(value).__qualname__} has no JSON form: {value!r:.80}")


def from_jsonable(data: Any) -> Any:
    """Inverse of :func:`to_jsonable`."""
    if isinstance(data, list):
        return [from_jsonable(item) for item in data]
    if not isinstance(data, dict):
        return data
    if _TAGS.isdisjoint(data):
        return {key: from_jsonable(item) if isinstance(item, dict | list) else item for key, item in data.items()}
    if "$type" in data:
        return _known(data["$type"])(**{key: from_jsonable(item) for key, item in data.items() if key != "$type"})
    if "$array" in data:
        _check_dtype(data["$array"])
        return np.array(from_jsonable(data["data"]), dtype=data["$array"]).reshape(data["shape"])
    if "$tuple" in data:
        return tuple(from_jsonable(item) for item in data["$tuple"])
    if "$enum" in data:
        return _known(data["$enum"])(data["value"])
    if "$float" in data:
        return float(data["$float"])
    if "$path" in data:
        return Path(data["$path"])
    return {key: from_jsonable(item) for key, item in data["$map"].items()}


def _known(name: str) -> type[Any]:
    try:
        return _KNOWN[name]
    except KeyError:
        raise TypeError(f"{name!r} is no type of the contract") from None


def _check_dtype(name: str) -> None:
    if name not in _DTYPES:
        raise TypeError(f"arrays of dtype {name} cannot cross a worker boundary")
