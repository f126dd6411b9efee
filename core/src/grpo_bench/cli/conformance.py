"""``plugins check``: whether installed plugins import, and whether one of them keeps the contract of its role.

Nothing of a plugin runs in this process: imports are tried in a copy of it, the conformance suite in another process,
each with a time-out. Exit code 1 says that something failed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .columns import columns, say

if TYPE_CHECKING:
    from ..registry import Installed
    from ..registry.conditions import Condition
    from ..testing.checking import Verdict

_TIMEOUT_S = 60.0


def add(actions: Any) -> None:
    """The action ``check`` among those of ``plugins``."""
    parser = actions.add_parser("check", help="whether plugins import, or one keeps its contract", description=__doc__)
    parser.add_argument("name", metavar="NAME", nargs="?",
                        help="run the conformance suite of this plugin (default: try the import of every plugin)")
    parser.add_argument("--role", help="where several roles have a plugin of that name (default: check all of them)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="a value of the plugin's section, as in workers=2; may be repeated")
    parser.add_argument("--fabric", default="inline", metavar="FABRIC",
                        help="fabric that its workers run on (default: inline)")
    parser.add_argument("--timeout", type=_seconds, default=_TIMEOUT_S, metavar="S",
                        help=f"seconds for an import, and for each demand (default: {_TIMEOUT_S:g})")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(verb=_check)


def _check(arguments: argparse.Namespace) -> int:
    from ..registry import installed_plugins
    from .plugins import named
    plugins = installed_plugins()
    if arguments.name is None:
        return _check_imports(arguments, plugins)
    return _check_conformance(arguments, plugins, named(plugins, arguments.name, arguments.role))


def _check_imports(arguments: argparse.Namespace, plugins: Sequence[Installed]) -> int:
    from .plugins import of
    found = [(item, _condition(item, plugins, arguments.timeout)) for item in of(plugins, arguments.role)]
    if arguments.json:
        print(json.dumps([_facts(item, condition) for item, condition in found]))
    else:
        say(columns([(item.role, item.name, f"{item.distribution} {item.version}",
                      ": ".join(filter(None, (condition.state, condition.reason)))) for item, condition in found]))
    return int(any(_failed(condition) for _, condition in found))


def _check_conformance(arguments: argparse.Namespace, plugins: Sequence[Installed], chosen: Sequence[Installed]) -> int:
    import asyncio  # half of what `--help` would import
    from ..registry.conditions import State, imported_condition
    failed, results = False, []
    for item in chosen:
        condition = _condition(item, plugins, arguments.timeout)
        note = f" ({condition.reason}; checked all the same)" if condition.state is State.DISABLED else ""
        if condition.state is State.DISABLED:
            condition = imported_condition(item, arguments.timeout)
        if not arguments.json:
            reason = f": {condition.reason}" if condition.reason else ""
            say(f"{item.role} {item.name} of {item.distribution} {item.version}: {condition.state}{reason}{note}")
        verdicts = asyncio.run(_verdicts(arguments, item)) if condition.state is State.OK else []
        failed = failed or _failed(condition) or any(verdict.outcome == "FAILED" for verdict in verdicts)
        results.append({**_facts(item, condition), "demands": [asdict(verdict) for verdict in verdicts]})
    if arguments.json:
        print(json.dumps(results))
    return int(failed)


async def _verdicts(arguments: argparse.Namespace, plugin: Installed) -> list[Verdict]:
    """Every demand's verdict, shown as soon as it is there."""
    from ..registry.overrides import parse_overrides
    from ..testing.checking import Request, verdicts
    _need_pytest()
    request = Request(plugin.role, plugin.name, parse_overrides(arguments.overrides), arguments.fabric,
                      arguments.timeout)
    found = []
    async for verdict in verdicts(request):
        found.append(verdict)
        if not arguments.json:
            say(f"  {verdict.outcome:<14} {verdict.name}" + (f": {verdict.reason}" if verdict.reason else ""))
    if not arguments.json:
        counts = Counter(verdict.outcome for verdict in found)
        say(f"  {len(found)} demands: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return found


def _need_pytest() -> None:
    from importlib.util import find_spec

    from ..contract import PlanError
    if find_spec("pytest") is None:
        raise PlanError("the conformance suites are made of pytest tests, and pytest is not installed",
                        hint="pip install 'grpo-bench[testing]'")


def _condition(plugin: Installed, plugins: Sequence[Installed], timeout_s: float) -> Condition:
    from ..registry.conditions import condition
    from ..registry.disabled import disabled_plugins
    from ..registry.installed import duplicates
    return condition(plugin, duplicates(plugins), disabled_plugins(), timeout_s)


def _failed(condition: Condition) -> bool:
    return condition.state not in ("ok", "disabled")


def _facts(plugin: Installed, condition: Condition) -> dict[str, Any]:
    return {"role": plugin.role, "name": plugin.name, "distribution": plugin.distribution, "version": plugin.version,
            "state": condition.state.value, "reason": condition.reason}


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"should be a number of seconds above 0, got {text!r}")
    return value
