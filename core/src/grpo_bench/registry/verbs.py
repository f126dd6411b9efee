"""Verbs that installed distributions add to the command line: entry points of the group ``grpo_bench.verb``.

Each names a function that takes the verb's argparse parser and fills it in, with ``verb`` set by default to what runs
it and returns the exit code. As with plugins, listing reads metadata only, and just the verb that was asked for is
imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Any

GROUP = "grpo_bench.verb"


@dataclass(frozen=True, order=True)
class InstalledVerb:
    """One verb. ``value`` is the ``module:function`` that fills in its parser."""

    name: str
    distribution: str
    summary: str
    value: str


def installed_verbs() -> tuple[InstalledVerb, ...]:
    """All of them, by name and distribution."""
    found = set()
    for distribution in distributions():
        try:
            found |= {InstalledVerb(point.name, distribution.metadata["Name"],
                                    next(iter(distribution.metadata.get_all("Summary", [])), ""), point.value)
                      for point in distribution.entry_points if point.group == GROUP}
        except (TypeError, ValueError, AttributeError, OSError):
            continue  # metadata that cannot be read brings no verb
    return tuple(sorted(found))


def fill_verb(name: str, among: Iterable[InstalledVerb], parser: Any) -> None:
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
