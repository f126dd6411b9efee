"""Values through both wire forms, and the refusal of everything that is none."""

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import grpo_bench.contract as contract
from grpo_bench.contract import codec

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]
FEW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
NOT_SENT = {"PluginContext", "WorkerContext"}  # they hold live objects
KNOWN = sorted(codec._KNOWN.values(), key=lambda item: item.__name__)
RECORDS = [item for item in KNOWN if dataclasses.is_dataclass(item) and item.__name__ not in NOT_SENT]
ENUMS = [item for item in KNOWN if issubclass(item, enum.Enum)]

shapes = arrays.array_shapes(min_dims=0, min_side=0)
any_array = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, shapes))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.sampled_from(list(contract.End)),
    st.builds(contract.Position, st.integers(), st.integers()), st.builds(Path, st.just("/a/b c")))
trees = st.recursive(scalars | any_array, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=10)


def same(left: Any, right: Any) -> bool:
    """Equal in type and value, NaN equal to NaN, arrays in dtype and shape as well."""
    if isinstance(left, np.ndarray):
        return (isinstance(right, np.ndarray) and left.dtype == right.dtype and left.shape == right.shape
                and np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, item.name), getattr(right, item.name)) for item in dataclasses.fields(left))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    return left == right


def through_json(value: Any) -> Any:
    text = json.dumps(codec.to_jsonable(value), allow_nan=False)
    return codec.from_jsonable(json.loads(text))


def through_msgpack(value: Any) -> Any:
    return codec.unpack(codec.pack(value))


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's declared type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([of(item) for item in arguments])
    if origin is tuple:
        several = arguments[1:] == (...,)
        return st.lists(of(arguments[0]), max_size=2).map(tuple) if several else st.tuples(*map(of, arguments))
    if origin is Mapping:
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=2)
    if origin is np.ndarray:
        dtype = np.dtype(typing.get_args(arguments[1])[0])
        return arrays.arrays(dtype, st.integers(0, 5))
    if annotation is Any:
        return scalars
    if dataclasses.is_dataclass(annotation):
        return record(annotation)
    return st.just(Path("/a")) if annotation is Path else st.from_type(annotation)


def record(kind: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{item.name: of(hints[item.name]) for item in dataclasses.fields(kind)})


def test_the_types_that_can_cross():
    assert [item.__name__ for item in RECORDS] == [
        "Address", "AgentEnd", "Boundary", "Entry", "Event", "ExecResult", "Failure", "Finding", "Group", "GroupSpec",
        "LaunchForm", "Need", "Placement", "PolicyFacts", "Position", "RefitStats", "Reply", "Sample", "Sampling",
        "Score", "Task", "TensorSpec", "TokenSequence", "ToolCall", "TrainBatch", "Trajectory", "Transfer", "Turn",
        "UpdateStats", "ValidationReport"]
    assert [item.__name__ for item in ENUMS] == [
        "Cause", "End", "FinishReason", "Kind", "Metric", "Phase", "Purpose", "Role", "Status"]


@pytest.mark.parametrize("through", [through_json, through_msgpack])
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_record_comes_back_equal(kind, through):
    @FEW
    @given(record(kind))
    def check(value: Any) -> None:
        assert same(through(value), value)
    check()


@pytest.mark.parametrize("through", [through_json, through_msgpack])
def test_every_enum_member_comes_back_itself(through):
    for member in (member for kind in ENUMS for member in kind):
        assert through(member) is member


@pytest.mark.parametrize("through", [through_json, through_msgpack])
@FEW
@given(value=trees)
def test_any_tree_of_values_comes_back_equal(through, value):
    assert same(through(value), value)


@FEW
@given(value=st.dictionaries(st.integers(), st.binary()) | st.frozensets(st.text()) | st.integers(min_value=2**64))
def test_what_only_msgpack_carries(value):
    assert same(through_msgpack(value), value)


@FEW
@given(any_array)
def test_arrays_arrive_aligned_and_read_only(value):
    found = through_msgpack(value)
    assert found.flags.aligned
    assert not found.flags.writeable


@pytest.mark.parametrize("value", [np.arange(12).reshape(3, 4)[::2, ::-1], np.arange(3, dtype=">i4"), np.float32(0.5),
                                   np.int64(7), np.bool_(True)])
def test_layouts_and_scalars_of_numpy_become_plain(value):
    for found in (through_msgpack(value), through_json(value)):
        np.testing.assert_array_equal(found, value)
        assert type(found) in (np.ndarray, float, int, bool)


@dataclasses.dataclass
class Stranger:
    x: int = 1


class Colour(enum.StrEnum):
    RED = "red"


STRANGERS = [object(), Stranger(), Colour.RED, 1j, print, Exception("x"),
             np.array([1j]), np.array(["a"]), np.array([object()])]


@pytest.mark.parametrize("value", STRANGERS, ids=lambda value: repr(value).partition(" at 0x")[0])
@pytest.mark.parametrize("write", [codec.pack, codec.to_jsonable])
def test_types_of_others_are_refused(write, value):
    with pytest.raises(TypeError, match=r"cannot cross|has no JSON form"):
        write({"deep": [(value,)]})


@pytest.mark.parametrize("data", [
    {"$type": "Stranger", "x": 1}, {"$enum": "Colour", "value": "red"}, {"$array": "object", "shape": [0], "data": []},
    {"$type": "PluginContext"}, {"$type": "Position", "unknown": 1}])
def test_names_of_others_are_refused_when_read(data):
    with pytest.raises(TypeError):
        codec.from_jsonable(data)


def test_a_plain_dictionary_never_turns_into_a_record():
    for plain in ({"$type": "Position", "epoch": 0, "index": 0}, {"$map": {"$map": 1}}, {"$tuple": None}):
        assert same(through_json(plain), plain) and same(through_msgpack(plain), plain)


@FEW
@given(record(contract.Trajectory), st.data())
def test_a_damaged_message_is_refused_or_read_as_data(value, data):
    whole = bytearray(codec.pack(value))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole)))
    try:
        found = codec.unpack(bytes(whole[:end]))
    except (ValueError, TypeError, LookupError, ArithmeticError):
        return
    assert isinstance(found, list | tuple | dict | str | bytes | int | float | np.ndarray | frozenset | Path | None
                      | enum.Enum) or type(found) in codec._KNOWN.values()
