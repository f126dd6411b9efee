"""Verbs that installed distributions add to the command line: entry points of the group ``grpo_bench.verb``.

Each names a function that takes the verb's argparse parser and fills it in, with ``verb`` set by default to what runs
it and returns the exit code. As with plugins, listing reads metadata only, and just the verb that was asked for is
imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .installed import GROUP, Installed, entry_points

VERB = "verb"


def installed_verbs() -> tuple[Installed, ...]:
    """All of them, by name and distribution."""
    return tuple(sorted(entry_points({GROUP + VERB: VERB}), key=lambda item: (item.name, item.distribution)))


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
