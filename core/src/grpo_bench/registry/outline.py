"""What a plan goes by where the policy's checkpoint is not there: a file that says what that is like.

JSON with two tables. ``config`` is what the checkpoint's config.json says. ``tensors`` has the shapes of its weights by
name: those under ``once`` as they are, those under ``layers`` for every layer, and those under a kind of
``layer_types`` for layers of that kind; ``*`` in a name is the layer's number. No weight is ever made of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ..contract import Settings

Shape = tuple[Annotated[int, Field(ge=1, le=2**40, strict=True)], ...]
Shapes = dict[str, Shape]
ONCE, LAYERS = "once", "layers"
MOST_BYTES = 2**20


class _File(Settings):
    config: dict[str, Any]
    tensors: dict[str, Shapes]


@dataclass(frozen=True)
class Outline:
    """``config`` as config.json would have it, and the shape of each weight by name."""

    config: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]


def read_outline(file: Path) -> Outline:
    """The outline in ``file``; ValueError where there is none."""
    try:
        with file.open("rb") as opened:
            found = _File.model_validate_json(opened.read(MOST_BYTES))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    return Outline(found.config, dict(_tensors(found)))


def _tensors(file: _File) -> Iterator[tuple[str, tuple[int, ...]]]:
    config = text_config(file.config)
    layers, kinds = config.get("num_hidden_layers"), config.get("layer_types")
    if type(layers) is not int or not 1 <= layers <= 4096:
        raise ValueError("config gives no num_hidden_layers")
    kinds = kinds if isinstance(kinds, list) else [LAYERS] * layers
    if len(kinds) != layers:
        raise ValueError(f"config.layer_types are {len(kinds)} and num_hidden_layers {layers}")
    if unknown := sorted(file.tensors.keys() - {ONCE, LAYERS, *map(str, kinds)}):
        raise ValueError(f"tensors.{unknown[0]}: no layer is of that kind")
    yield from file.tensors.get(ONCE, {}).items()
    for layer, kind in enumerate(map(str, kinds)):
        for table in dict.fromkeys((LAYERS, kind)):
            for name, shape in file.tensors.get(table, {}).items():
                yield name.replace("*", str(layer)), shape


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config.json."""
    inner = config.get("text_config", {})
    return {**config, **inner} if isinstance(inner, Mapping) else config
