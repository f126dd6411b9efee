"""Verbs that installed distributions add to the command line: entry points of the group ``grpo_bench.verb``.

Each names a function that takes the verb's argparse parser and fills it in, with ``verb`` set by default to what runs
it and returns the exit code. As with plugins, listing imports nothing: only the verb that was asked for is imported.
What a verb is for is said by the docstring of the function's module: ``what it is called: what it is for``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .installed import GROUP, Installed, entry_points

VERB = "verb"


def installed_verbs() -> tuple[Installed, ...]:
    """All of them, by name and distribution; ``summary`` is the verb's own, or its distribution's where it has none."""
    found = sorted(entry_points({GROUP + VERB: VERB}), key=lambda item: (item.name, item.distribution))
    return tuple(replace(item, summary=_summary(item.module) or item.summary) for item in found)


def _summary(module: str) -> str:
    """The first sentence of a module's docstring, without what stands before its colon; empty where it has none."""
    package, _, inside = module.partition(".")
    try:
        spec = find_spec(package)
        folder = Path(((spec and spec.submodule_search_locations) or [""])[0])
        text = ast.get_docstring(ast.parse((folder / f"{inside.replace('.', '/')}.py").read_bytes())) or ""
    except (OSError, ValueError, SyntaxError):
        return ""
    sentence = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0]
    return sentence.partition(": ")[2].removesuffix(".").replace("``", "")


def fill_verb(name: str, among: Iterable[Installed], parser: Any) -> None:
    """Have the verb's parser filled in by its distribution; PlanError where that cannot be done."""
    from ..contract import PlanError, load_object
    owners = [item for item in among if item.name == name]
    if len(owners) > 1:
        names = ", ".join(item.distribution for item in owners)
        raise PlanError(f"several distributions bring a verb {name!r}: {names}", hint="uninstall all but one")
    try:
        load_object(owners[0].value)(parser)
    except Exception as error:
        raise PlanError(f"the verb {name!r} of {owners[0].distribution} cannot be used: {type(error).__name__}: "
                        f"{error}", hint="an error of that package") from error
