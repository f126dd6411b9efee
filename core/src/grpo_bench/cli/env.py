"""``env``: the environments of workers whose libraries do not fit beside the engine's: build, list, remove.

Which there are is said by the installed plugins. Builds are in the user's cache, one for each lock: where a plugin
brings another lock, the old build stays, for runs that use it, until ``env remove NAME --stale``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from .columns import columns, say
from .options import Verbs

if TYPE_CHECKING:
    from ..registry.envs import Known
    from ..registry.envs_store import Place


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("env", help="build, list or remove environments of workers", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    building = actions.add_parser("build", help="build environments from their locks")
    building.add_argument("names", metavar="NAME", nargs="+")
    building.add_argument("--force", action="store_true", help="build anew what is built already")
    building.add_argument("--python", metavar="PATH", help="interpreter to build with (default: the first that fits)")
    building.add_argument("--index", metavar="URL", help="package index for pip to ask besides those of its settings")
    building.set_defaults(verb=_build)
    listing = actions.add_parser("list", help="which there are, what needs them, and which are built")
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    listing.set_defaults(verb=_list)
    removing = actions.add_parser("remove", help="remove builds; a run that uses one breaks")
    removing.add_argument("names", metavar="NAME", nargs="+")
    removing.add_argument("--stale", action="store_true", help="only builds of other locks, and unfinished ones")
    removing.set_defaults(verb=_remove)


def _build(arguments: argparse.Namespace) -> int:
    from ..registry.envs import build, known, named, places
    found = known()
    for env in [named(name, found) for name in dict.fromkeys(arguments.names)]:
        with _stopped_by_signals():
            place = build(env, _tell, force=arguments.force, python=arguments.python, index=arguments.index)
        others = [other for other in places() if other.name == env.name and other != place]
        if others:
            _tell(f"{_count(others, 'other build')} of {env.name} {'is' if len(others) == 1 else 'are'} kept; "
                  f"grpo-bench env remove {env.name} --stale removes what no plugin needs")
    return 0


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """What ends a process ends it as an exception does here, which takes along what it began."""
    def stop(number: int, _: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _list(arguments: argparse.Namespace) -> int:
    from ..registry.envs import known
    rows = _rows(known())
    if arguments.json:
        print(json.dumps(rows))
    elif not rows:
        say("no installed plugin needs an environment of its own")
    else:
        say(*_text(rows))
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    from ..contract import PlanError
    from ..registry.envs import held, known, places
    from ..registry.names import choices
    found = known()
    names = {item.env.name for item in found} | {place.name for place in places()}
    for name in arguments.names:
        if name not in names:
            raise PlanError(f"there is no environment {name!r}{choices(name, names)}")
    for name in dict.fromkeys(arguments.names):
        with held(name, _tell):
            keep = _owners(found) if arguments.stale else {}
            gone = [place for place in places() if place.name == name
                    and not (place.stem in keep and place.record() is not None)]
            for place in gone:
                place.remove()
        _tell(f"{_count(gone)} of {name} removed")
    return 0


def _rows(found: Iterable[Known]) -> list[dict[str, Any]]:
    """Each known environment, built or not, then builds that no plugin needs."""
    from ..registry.envs import places
    owners, there = _owners(found), places()
    begun = [owners[place.stem] for place in there if place.stem in owners]
    rows = [_row(item.env.name, item) for item in found if item not in begun]
    rows += [_row(place.name, owners.get(place.stem), place) for place in there]
    return sorted(rows, key=lambda row: (row["name"], not row["needed_by"], str(row["path"])))


def _owners(found: Iterable[Known]) -> Mapping[str, Known]:
    """The known environments by what the names of their builds begin with."""
    from ..contract import PlanError
    from ..registry.envs_lock import read_lock
    owners = {}
    for item in found:
        try:
            owners[read_lock(item.env).stem] = item
        except PlanError as error:
            _tell(error.message)
    return owners


def _row(name: str, owner: Known | None, place: Place | None = None) -> dict[str, Any]:
    from ..registry.envs_store import busy, read_json, size_of
    row: dict[str, Any] = {"name": name, "needed_by": list(owner.needed_by) if owner else [], "state": "not built",
                           "python": None, "bytes": None, "versions": {}, "path": None}
    if place is None:
        return row
    row |= {"path": str(place.folder), "versions": read_json(place.inventory).get("inventory", {}).get("versions", {})}
    if record := place.record():
        return {**row, "state": "built" if owner else "stale", "python": record.python, "bytes": record.size}
    return {**row, "state": "being built" if busy(name) else "unfinished", "bytes": size_of(place.folder)}


def _text(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    heads = columns([(row["name"], row["state"], "" if row["bytes"] is None else f"{row['bytes'] / 1e9:.1f} GB",
                      ", ".join(row["needed_by"]) or "needed by no plugin") for row in rows]).splitlines()
    lines = []
    for head, row in zip(heads, rows):
        versions = {"python": row["python"], **row["versions"]} if row["python"] else {}
        more = [", ".join(f"{name} {version}" for name, version in versions.items()), row["path"]]
        lines += [head, *(f"    {line}" for line in more if line)]
    return lines


def _count(found: list[Place], noun: str = "build") -> str:
    return f"{len(found)} {noun}{'s' * (len(found) != 1)}"


def _tell(words: str) -> None:
    print(f"grpo-bench: {words}" if not words.startswith(" ") else words, file=sys.stderr, flush=True)
