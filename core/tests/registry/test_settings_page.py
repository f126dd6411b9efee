"""``docs/settings.md`` says what the models say. Run as a script, this module prints the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pytest
from grpo_bench.contract import Settings
from grpo_bench.registry.described import described
from grpo_bench.registry.profile import Profile, Section
from pydantic import BaseModel, Field

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"
HEAD = """\
# Settings

Every key of a profile that belongs to the core, section by section: `[profiles.NAME.SECTION]` in `registry.toml`, or
`--set SECTION.KEY=VALUE`. `"off"` switches off what can be off. The keys that a plugin has in its role's section are
listed by `grpo-bench plugins show NAME`. How layers and profiles fit together: [registry.toml](registry.md).
"""
ROLES = """
## Roles

`trainer`, `generator`, `environment`, `agent`, `hardware`, `fabric` and, where there is one, `ruleset` are sections:
`use` names the plugin that takes the role, `env` another [environment](environments.md) for its workers than the
plugin's own (a name, or the path of a python); the other keys are that plugin's. `observers` is a list of such
sections.
"""


def page() -> str:
    return HEAD + "".join(sections(Profile, "", set())) + ROLES


def sections(model: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    """The table of a model's own keys, then those of the models inside it, each model once."""
    inside = {key: found for key, field in model.model_fields.items() if (found := _model(field.annotation))}
    own = [item for item in described(model)
           if inside.get(item.key) is None or not _always(model.model_fields[item.key].annotation)]
    rows = [_row(f"`{item.key}`", item.type, item.shown if item.required else f"`{item.shown}`", item.description)
            for item in own if inside.get(item.key) is not Section]
    yield "\n".join([f"\n## {f'`{path}`' if path else 'The profile itself'}\n", "| key | values | default | meaning |",
                     "|---|---|---|---|", *rows, ""])
    for key, found in inside.items():
        if found not in seen and not issubclass(found, Section):
            seen.add(found)
            yield from sections(found, f"{path}.{key}".lstrip("."), seen)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model, get_args(annotation))), None)


def _always(annotation: Any) -> bool:
    """Whether the key always holds a section: one that has a table of its own, and no value to be off."""
    return isinstance(annotation, type)


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text("utf-8") == page(), f"write it anew: python {Path(__file__).name} > docs/settings.md"


def test_every_setting_of_the_core_has_a_meaning() -> None:
    tables = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(tables) > 60
    assert [line for line in tables if line.endswith("|  |")] == []


class Inner(Settings):
    a: int = 1
    b: str = ""


class Sample(Settings):
    mode: Literal["sync", "async"] = "sync"
    bound: Annotated[float, Field(gt=0)] | None = 1.5
    """None: no bound."""
    rows: Annotated[int, Field(ge=1, le=65_536)]
    """How many,
    in ``registry.toml``."""
    rate: Annotated[float, Field(ge=0, lt=1)] = 1e-4
    switch: Literal["on", "off"] | None = None
    pair: tuple[float, float] | None = None
    mixed: tuple[int, str] = (1, "a")
    names: tuple[str, ...] = ()
    inner: tuple[Inner, ...] = ()
    flag: bool = False


@pytest.mark.parametrize(("key", "type_", "shown"), [
    ("mode", '"sync" | "async"', '"sync"'), ("bound", 'number above 0 or "off"', "1.5"),
    ("rows", "integer from 1 to 65,536", "required"), ("rate", "number at least 0, below 1", "0.0001"),
    ("switch", '"on" | "off"', "not set"), ("pair", 'list of 2, each number or "off"', '"off"'),
    ("mixed", "list of: integer; text", '[1, "a"]'),
    ("names", "list, each text", "[]"), ("inner", "list, each table (a, b)", "[]"), ("flag", "true | false", "false"),
])
def test_fields_in_words(key: str, type_: str, shown: str) -> None:
    found = {item.key: item for item in described(Sample)}
    assert (found[key].type, found[key].shown) == (type_, shown)
    assert found["rows"].description == "How many, in registry.toml."
    assert found["bound"].description == '"off": no bound.'


if __name__ == "__main__":
    print(page(), end="")
