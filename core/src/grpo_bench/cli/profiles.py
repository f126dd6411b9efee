"""``profiles list`` and ``profiles show``: what the registry holds, without loading a plugin."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import columns
from .options import Verbs, add_layer_options, resolved_by

if TYPE_CHECKING:
    from ..registry import Resolved


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("profiles", help="list or show profiles", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every profile of every registry layer, with those that extend it")
    listing.add_argument("--registry", type=Path, metavar="FILE", help="read this instead of ./registry.toml")
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    listing.set_defaults(verb=_list)
    show = actions.add_parser("show", help="a profile's values after merging, and where each was set")
    show.add_argument("profile", metavar="NAME")
    add_layer_options(show)
    show.add_argument("--json", action="store_true", help="print values and origins as one JSON object")
    show.set_defaults(verb=_show)


def _list(arguments: argparse.Namespace) -> int:
    from ..registry import profile_names, read_sources
    sources = read_sources(arguments.registry)
    found = []
    for name in profile_names(sources):
        setters = [source for source in sources if name in source.profiles]
        merged = {key: value for source in setters for key, value in source.profiles[name].items()}
        found.append({"name": name, "description": str(merged.get("description", "")), "extends": merged.get("extends"),
                      "files": [str(source.file) for source in setters]})
    print(json.dumps(found) if arguments.json else columns(list(_families(found))))
    return 0


def _families(found: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Name and description of each profile, those that extend one indented below it."""
    names = {item["name"] for item in found}
    children: dict[str, list[dict[str, Any]]] = {}
    for item in found:
        base = item["extends"]
        children.setdefault(base if isinstance(base, str) and base in names else "", []).append(item)
    shown: set[str] = set()

    def below(parent: str, depth: int) -> Iterator[tuple[str, str]]:
        for item in children.get(parent, ()):
            if item["name"] not in shown:
                shown.add(item["name"])
                yield "  " * depth + item["name"], item["description"]
                yield from below(item["name"], depth + 1)

    yield from below("", 0)
    yield from ((item["name"], item["description"]) for item in found if item["name"] not in shown)


def _show(arguments: argparse.Namespace) -> int:
    resolved = resolved_by(arguments)
    explained = [item for item in resolved.explained if item.origin.layer != "default"]
    if arguments.json:
        print(json.dumps({item.key: {"value": item.value, "origin": str(item.origin)} for item in explained}))
    else:
        print("\n".join(account(resolved, explained)))
    return 0


def account(resolved: Resolved, explained: Any) -> list[str]:
    """Lines that say for each value where it came from, and what fell away."""
    lines = [f"profile {resolved.name}" + "".join(f" <- {base}" for base in reversed(resolved.merged.chain[:-1]))]
    lines.append(columns([(item.key, f"= {json.dumps(item.value)}  # {item.origin}") for item in explained]))
    for item in resolved.dropped:
        lines.append(f"dropped: {item.section}.{{{', '.join(item.keys)}}}, meant for {item.plugin!r}, since "
                     f"{item.section}.use = {item.chosen!r}  # {item.origin}")
    return lines
