"""Recipes of tasks: pairs of releases of a package, the older of which lacks something that the newer's tests show.

A set of recipes is a TOML file: ``pins``, the exact releases that every task's environment has (pytest and what it
needs), and a ``[[task]]`` for each pair. The packaged sets lie beside this module.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from grpo_bench.contract import InputError, Settings
from pydantic import Field, ValidationError

PACKAGED = ("swe",)
NAME, VERSION = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", r"[A-Za-z0-9][A-Za-z0-9.+!_-]*"
_PAIR = re.compile(rf"({NAME})==({VERSION}?)\.\.({VERSION})")
Pin = Annotated[str, Field(pattern=rf"^{NAME}=={VERSION}$")]


class Recipe(Settings):
    """One task."""

    package: Annotated[str, Field(pattern=f"^{NAME}$")]
    old: Annotated[str, Field(pattern=f"^{VERSION}$")]
    """The release that is to be repaired."""
    new: Annotated[str, Field(pattern=f"^{VERSION}$")]
    """The release whose tests decide."""
    split: Literal["train", "validation"] = "train"
    pins: tuple[Pin, ...] = ()
    """What the tests need beyond the set's pins: exact releases, with all that those need."""
    statement: str = ""
    """What the agent is told; empty: what the new release's changelog says about it."""

    @property
    def name(self) -> str:
        return f"{self.package}=={self.old}..{self.new}"


class RecipeSet(Settings):
    """A file of recipes."""

    schema_: Literal[1]
    pins: tuple[Pin, ...]
    task: tuple[Recipe, ...] = ()


def load(name: str) -> RecipeSet:
    """A packaged set by its name, or the file at a path."""
    path = Path(__file__).with_name(f"{name}.toml") if name in PACKAGED else Path(name)
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text())
        return RecipeSet.model_validate({"schema_" if key == "schema" else key: value for key, value in data.items()})
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}",
                         hint=f"name a file of recipes, or one of: {', '.join(PACKAGED)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc'])).rstrip('_')}: {first['msg']}") from None


def parse(pair: str) -> Recipe:
    """``PACKAGE==OLD..NEW``."""
    found = _PAIR.fullmatch(pair)
    if not found:
        raise InputError(f"{pair!r} is no pair of releases", hint="write PACKAGE==OLD..NEW, as parse==1.20.1..1.20.2")
    return Recipe(package=found[1], old=found[2], new=found[3])


def split_up(recipes: list[Recipe], validation: int | None) -> list[Recipe]:
    """The last ``validation`` of them to validate with, the others to train on; None: as they say themselves."""
    if validation is None:
        return recipes
    first = len(recipes) - validation
    if first < 0 or validation < 0:
        raise InputError(f"{validation} of {len(recipes)} tasks cannot be for validation")
    return [recipe.model_copy(update={"split": "train" if number < first else "validation"})
            for number, recipe in enumerate(recipes)]
