"""Values meet models, and what pydantic finds is said in the user's terms.

Values go to the model as strict JSON: a boolean is no number, a string is no path to a number, and yet lists become
tuples and names become enums, which TOML cannot write. Nor can it write a null: ``"off"`` stands for it. A reference
that no site file resolves stays where the model takes it as text, and is left at the default where it does not.
"""

from __future__ import annotations

import copy
import json
import operator
import typing
from collections.abc import Mapping, Sequence
from functools import reduce
from types import NoneType
from typing import Any, Literal, Protocol, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ..contract import InputError, RegistryError
from .lines import Key
from .names import choices
from .references import reference, references

Model = TypeVar("Model", bound=BaseModel)
REQUIRED = "required, but not set"
OFF = "off"
"""How a registry says None, for any key that may be None."""
UNKNOWN = "extra_forbidden"
"""What pydantic calls an unknown key."""
MOST = 20
"""Wrong values that one message lists."""


class Written(Protocol):
    """Where values came from: what says of a wrong one where it was set."""

    def error(self, path: Key, message: str) -> InputError:
        """An error on the value at ``path``."""
        ...

    def blamed(self, path: Key, message: str) -> Key:
        """Of the values inside the table at ``path`` the one that ``message`` is about; else the table."""
        ...


def validate(model: type[Model], values: Mapping[str, Any], written: Written, prefix: Key = ()) -> Model:
    """``values``, which stand at ``prefix`` of the profile, as an instance of ``model``; a RegistryError lists all that
    is wrong with them."""
    try:
        return model.model_validate_json(json.dumps(_with_nulls(values, model)), strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)
        if waiting := [item["loc"] for item in wrong
                       if item["type"] != UNKNOWN and reference(item["input"]) is not None]:
            return validate(model, _without(values, waiting), written, prefix)
        found = [_said(item, model, values, written, prefix) for item in wrong[:MOST]]
        more = [f"and {len(wrong) - MOST} more"] if len(wrong) > MOST else []
        raise RegistryError("\n".join([*dict.fromkeys(found), *more])) from None


def _without(values: Mapping[str, Any], places: Sequence[Key]) -> dict[str, Any]:
    """``values`` without the references at ``places``, which may say more than the way there, as a union's branch."""
    kept = copy.deepcopy(dict(values))
    for path, _ in reversed(list(references(kept))):
        if any(_leads(place, path) for place in places):
            holder = reduce(operator.getitem, path[:-1], cast("Any", kept))
            del holder[path[-1]]
    return kept


def _leads(place: Key, path: Key) -> bool:
    parts = iter(place)
    return all(part in parts for part in path)


def _with_nulls(values: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    fields = model.model_fields
    return {key: _with_null(value, fields[key].annotation) if key in fields else value for key, value in values.items()}


def _with_null(value: Any, annotation: Any) -> Any:
    if value == OFF and NoneType in typing.get_args(annotation) and not _spells_off(annotation):
        return None
    models = _models_in(annotation)
    if len(models) != 1:
        return value
    if isinstance(value, list):
        return [_with_nulls(item, models[0]) if isinstance(item, dict) else item for item in value]
    return _with_nulls(value, models[0]) if isinstance(value, dict) else value


def _spells_off(annotation: Any) -> bool:
    """Whether the text itself is one of the values that the key may take."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return OFF in arguments
    return any(_spells_off(argument) for argument in arguments)


def _said(item: Any, model: type[BaseModel], values: Mapping[str, Any], written: Written, prefix: Key) -> str:
    kind, message = item["type"], item["msg"]
    loc: Key = item["loc"] if kind == "missing" else _there(values, item["loc"])
    path = (*prefix, *loc)
    if kind == UNKNOWN:
        message = "unknown key" + choices(str(loc[-1]), _fields_at(model, loc[:-1]))
    elif kind == "missing":
        message = REQUIRED
    elif kind == "value_error":
        message = message.removeprefix("Value error, ")
        path = written.blamed(path, message)
    else:
        shown = json.dumps(item["input"], ensure_ascii=False) if not isinstance(item["input"], dict) else "a table"
        message = f"{message[:1].lower()}{message[1:]}, got {shown:.80}"
    return written.error(path, message).message


def _there(values: Any, loc: Key) -> Key:
    """The part of ``loc`` that leads to a value; a union's branch, which it may end with, is none."""
    for number, part in enumerate(loc):
        inside: Mapping[Any, Any] = dict(enumerate(values)) if isinstance(values, list) else values
        if not isinstance(inside, dict) or part not in inside:
            return loc[:number]
        values = inside[part]
    return loc


def _fields_at(model: type[BaseModel], loc: Key) -> list[str]:
    """Names of the fields of the model at ``loc`` inside ``model``; none where that is no model."""
    found: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = found.model_fields.get(part)
        models = _models_in(field.annotation) if field else []
        if len(models) != 1:
            return []
        found = models[0]
    return [field.alias or name for name, field in found.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in _models_in(argument)]
