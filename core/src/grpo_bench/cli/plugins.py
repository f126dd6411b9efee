"""``plugins list`` and ``plugins show``: what is installed, and what a plugin can do."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from .columns import columns
from .options import Verbs


def add(verbs: Verbs) -> None:
    parser = verbs.add_parser("plugins", help="list or show plugins", description=__doc__)
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="all installed plugins, from package metadata alone")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(verb=_list)
    show = actions.add_parser("show", help="a plugin's capabilities and settings")
    show.add_argument("name", metavar="NAME")
    show.add_argument("--role", help="where several roles have a plugin of that name")
    show.add_argument("--json", action="store_true")
    show.set_defaults(verb=_show)


def _list(arguments: argparse.Namespace) -> int:
    from ..registry import installed_plugins
    from ..registry.installed import duplicates
    plugins = installed_plugins()
    twice = duplicates(plugins)
    if arguments.json:
        print(json.dumps([{**asdict(item), "duplicate": (item.role, item.name) in twice} for item in plugins]))
        return 0
    print(columns([(item.role, item.name, f"{item.distribution} {item.version}",
                    "DUPLICATE: uninstall all but one" if (item.role, item.name) in twice else item.summary)
                   for item in plugins]))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from ..contract import PlanError, Role
    from ..registry import installed_plugins, load_plugin
    from ..registry.names import choices
    plugins = installed_plugins()
    asked = [role for role in Role if arguments.role in (None, role.value)]
    if not asked:
        known = choices(str(arguments.role), [role.value for role in Role])
        raise PlanError(f"--role {arguments.role}: no such role{known}")
    roles = [role for role in asked if (role.value, arguments.name) in {(item.role, item.name) for item in plugins}]
    if not roles:
        names = {item.name for item in plugins if item.role in asked}
        raise PlanError(f"no plugin named {arguments.name!r} for {arguments.role or 'any'} role is installed"
                        f"{choices(arguments.name, names)}")
    found = [_facts(*load_plugin(role, arguments.name)) for role in roles]
    print(json.dumps(found) if arguments.json else "\n\n".join(_text(facts) for facts in found))
    return 0


def _facts(descriptor: Any, entry: Any) -> dict[str, Any]:
    capabilities = {name: sorted(value) if isinstance(value, frozenset) else value
                    for name, value in asdict(descriptor.capabilities).items() if value}
    settings = {name: {"type": getattr(field.annotation, "__name__", None) or str(field.annotation),
                       "required": field.is_required(), "default": None if field.is_required() else str(field.default),
                       "description": field.description or ""}
                for name, field in descriptor.config.model_fields.items()}
    return {"role": descriptor.role.value, "name": descriptor.name, "summary": descriptor.summary,
            "distribution": entry.distribution, "version": entry.version, "stand_in": descriptor.stand_in,
            "requires": list(descriptor.requires), "supports": dict(descriptor.supports), "capabilities": capabilities,
            "settings": settings}


def _text(facts: dict[str, Any]) -> str:
    lines = [f"{facts['role']} {facts['name']}: {facts['summary']}",
             f"  from {facts['distribution']} {facts['version']}" + (" (stand-in)" if facts["stand_in"] else "")]
    lines += [f"  {name}: {', '.join(value) if isinstance(value, list) else value}"
              for name, value in facts["capabilities"].items()]
    rows = [(f"    {name}", field["type"], "required" if field["required"] else f"= {field['default']}",
             " ".join(field["description"].split())) for name, field in facts["settings"].items()]
    return "\n".join([*lines, "  settings:", columns(rows) or "    none"])
