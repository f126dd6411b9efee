"""Every number that a profile can hold, the core's and those of all plugins that come with it: what it refuses."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from grpo_bench.contract import Role
from grpo_bench.registry import Profile, installed_plugins, load_plugin

Path = tuple[str | int, ...]
NO_NUMBERS = [float("nan"), float("inf"), float("-inf"), True, "1", [], {}]


def numbers(annotation: Any, path: Path) -> Iterator[tuple[Path, type]]:
    """Path and type of each number inside ``annotation``: fields of models, items of tuples, what may be None."""
    if annotation in (int, float):
        yield path, annotation
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from numbers(field.annotation, (*path, name))
    elif typing.get_origin(annotation) is tuple:
        items = [item for item in typing.get_args(annotation) if item is not Ellipsis]
        for number, item in enumerate(items):
            yield from numbers(item, (*path, number))
    elif typing.get_origin(annotation) is not typing.Literal:
        for inner in typing.get_args(annotation):
            yield from numbers(inner, path)


def models() -> Iterator[tuple[str, type[BaseModel]]]:
    yield "profile", Profile
    for plugin in installed_plugins():
        if not plugin.distribution.startswith("grpo-bench"):
            continue
        descriptor, _ = load_plugin(Role(plugin.role), plugin.name)
        yield f"{plugin.role}:{plugin.name}", descriptor.config


ALL = {f"{name}:{'.'.join(map(str, path))}": (model, path, kind)
       for name, model in models() for path, kind in numbers(model, ())}


def each(*, kind: type | None = None, ending: str = "") -> Any:
    """Runs a test for each of these numbers."""
    found = {name: number for name, number in ALL.items() if kind in (None, number[2]) and name.endswith(ending)}
    return pytest.mark.parametrize(("model", "path", "kind"), found.values(), ids=found.keys())


def properties(schema: Any) -> Iterator[str]:
    """Names of all keys that a JSON schema knows."""
    if isinstance(schema, dict):
        yield from schema["properties"] if isinstance(schema.get("properties"), dict) else ()
        schema = list(schema.values())
    if isinstance(schema, list):
        for inner in schema:
            yield from properties(inner)


def nested(path: Path, value: Any) -> Any:
    """``value`` at ``path``; the other items of a list are ``value`` as well."""
    for part in reversed(path):
        value = {part: value} if isinstance(part, str) else [value] * (part + 1)
    return value


def refused(model: type[BaseModel], path: Path, value: Any) -> bool:
    """Whether that very value is what is wrong, among all that is missing."""
    try:
        TypeAdapter(model).validate_json(json.dumps(nested(path, value)), strict=True)
    except ValidationError as error:
        return any(item["loc"][:len(path)] == path for item in error.errors())
    return False


def test_there_are_numbers_to_look_at() -> None:
    assert len(ALL) > 80
    assert sum(name.startswith("trainer:") for name in ALL) > 10


@each()
def test_only_a_finite_number_is_a_number(model: type[BaseModel], path: Path, kind: type) -> None:
    wrong = [*NO_NUMBERS, *([1.5, 2**63, -2**63 - 1] if kind is int else [])]
    assert [value for value in wrong if not refused(model, path, value)] == []


@each(kind=int)
def test_every_count_has_a_bound_above_and_below(model: type[BaseModel], path: Path, kind: type) -> None:
    assert refused(model, path, 2**62)
    assert refused(model, path, -2**62)


@each(ending="_s")
def test_no_duration_is_endless_or_negative(model: type[BaseModel], path: Path, kind: type) -> None:
    assert refused(model, path, 1e8)
    assert refused(model, path, -1)


def test_no_setting_asks_for_several_updates_of_one_rollout() -> None:
    """``force_on_policy_ratio`` holds since a rollout meets one update; no key may promise more and be passed over."""
    keys = {key for _, model in models() for key in properties(model.model_json_schema())}
    repeats = ("epoch", "inner", "minibatch", "mini_batch", "iterations", "updates", "repeat", "passes", "global_batch")
    assert {"grpo", "force_on_policy_ratio", "learning_rate", "batch_tokens"} <= keys
    assert [key for key in keys if any(word in key for word in repeats)] == []
