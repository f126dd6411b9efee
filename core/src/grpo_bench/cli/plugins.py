"""``plugins``: what is installed, what a plugin can do, whether it keeps its contract, and how to begin a new one."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import conformance, scaffold
from .columns import columns, say
from .options import Verbs

if TYPE_CHECKING:
    from ..registry import Installed


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plugins", help="list, show, check or make plugins", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all installed plugins, from package metadata alone")
    listing.add_argument("--json", action="store_true", help="print one JSON array")
    listing.set_defaults(verb=_list)
    show = actions.add_parser("show", help="a plugin's capabilities and settings")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--role", help="where several roles have a plugin of that name")
    show.add_argument("--json", action="store_true", help="print one JSON array, an object for each role")
    show.set_defaults(verb=_show)
    conformance.add(actions)
    scaffold.add(actions)


def _list(arguments: argparse.Namespace) -> int:
    from ..registry.disabled import disabled_plugins
    from ..registry.installed import duplicates, installed_plugins
    plugins, disabled = installed_plugins(), disabled_plugins()
    twice = duplicates(plugins)
    states = ["duplicate" if (item.role, item.name) in twice else
              "disabled" if f"{item.role}:{item.name}" in disabled else "installed" for item in plugins]
    if arguments.json:
        print(json.dumps([{**asdict(item), "state": state} for item, state in zip(plugins, states)]))
        return 0
    remarks = {"duplicate": lambda item: "DUPLICATE: uninstall all but one",
               "disabled": lambda item: f"disabled by {disabled[f'{item.role}:{item.name}']}",
               "installed": lambda item: item.summary}
    say(columns([(item.role, item.name, f"{item.distribution} {item.version}", remarks[state](item))
                 for item, state in zip(plugins, states)]))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from ..contract import Role
    from ..registry import installed_plugins, load_plugin
    plugins = installed_plugins()
    roles = [Role(item.role) for item in named(plugins, arguments.name, arguments.role)]
    found = [_facts(*load_plugin(role, arguments.name, plugins)) for role in dict.fromkeys(roles)]
    print(json.dumps(found) if arguments.json else "\n\n".join(_text(facts) for facts in found))
    return 0


def named(plugins: Sequence[Installed], name: str, role: str | None) -> list[Installed]:
    """The plugins of that name, for any role where None is given; PlanError where there is none."""
    from ..contract import PlanError
    from ..registry.names import choices
    of_role = of(plugins, role)
    found = [item for item in of_role if item.name == name]
    if not found:
        raise PlanError(f"no plugin named {name!r} for {role or 'any'} role is installed"
                        f"{choices(name, {item.name for item in of_role})}")
    return found


def of(plugins: Sequence[Installed], role: str | None) -> list[Installed]:
    """The plugins for a role, all of them where None is given; PlanError where there is no such role."""
    from ..contract import PlanError
    from ..registry.installed import ROLES
    from ..registry.names import choices
    if role is not None and role not in ROLES:
        raise PlanError(f"--role {role}: no such role{choices(role, ROLES)}")
    return [item for item in plugins if role in (None, item.role)]


def _facts(descriptor: Any, entry: Any) -> dict[str, Any]:
    from ..contract import Role
    from ..registry.described import described
    capabilities = {name: sorted(value) if isinstance(value, frozenset) else value
                    for name, value in asdict(descriptor.capabilities).items()
                    if value and (name != "computes" or descriptor.role in (Role.TRAINER, Role.GENERATOR))}
    settings = {item.key: {"type": item.type, "required": item.required, "default": item.default, "shown": item.shown,
                           "description": item.description} for item in described(descriptor.config)}
    return {"role": descriptor.role.value, "name": descriptor.name, "summary": descriptor.summary,
            "distribution": entry.distribution, "version": entry.version, "stand_in": descriptor.stand_in,
            "requires": list(descriptor.requires), "supports": dict(descriptor.supports), "capabilities": capabilities,
            "known_failures": dict(descriptor.known_failures), "settings": settings}


def _text(facts: dict[str, Any]) -> str:
    lines = [f"{facts['role']} {facts['name']}: {facts['summary']}",
             f"  from {facts['distribution']} {facts['version']}" + (" (stand-in)" if facts["stand_in"] else "")]
    lines += [f"  {name}: {', '.join(value) if isinstance(value, list) else value}"
              for name, value in facts["capabilities"].items()]
    lines += [f"  known not to meet {name}: {reason}" for name, reason in facts["known_failures"].items()]
    settings = [line for name, field in facts["settings"].items() for line in _setting(name, field)]
    return "\n".join([*lines, "  settings:", *(settings or ["    none"])])


def _setting(name: str, field: dict[str, Any]) -> list[str]:
    value = "required" if field["required"] else f"= {field['shown']}"
    about = [f"      {field['description']}"] if field["description"] else []
    return [f"    {name} {value}", f"      {field['type']}", *about]

