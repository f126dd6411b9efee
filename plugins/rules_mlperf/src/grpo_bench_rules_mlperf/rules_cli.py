"""``grpo-bench rules``: which versions of the rules there are, what one holds, and how two differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_bench.cli.columns import tell
from grpo_bench.contract import InputError

from .holding import wanted_words
from .rules import Bound, Division, Nothing, Requirement, Rules
from .versions import VERSIONS

_BY_NAME = {rules.name: rules for rules in VERSIONS}
_SHARED = ("benchmark", "checker", "checker_ruleset", "model", "k", "training_tasks", "validation_tasks")


def rules(parser: argparse.ArgumentParser) -> None:
    """Give ``grpo-bench rules`` its verbs."""
    verbs = parser.add_subparsers(required=True, metavar="ACTION")
    listing = verbs.add_parser("list", help="every version of the rules, the newest first")
    listing.set_defaults(verb=_list)
    show = verbs.add_parser("show", help="everything that one version demands, and why")
    show.add_argument("name", metavar="NAME", help="see 'rules list'")
    diff = verbs.add_parser("diff", help="what changes from one version to another, requirement by requirement")
    diff.add_argument("before", metavar="A")
    diff.add_argument("after", metavar="B")
    for each in (show, diff):
        each.add_argument("--batch", type=_batch, metavar="N", help="rollouts per step, for what follows from it "
                                                                    "(default: those of the table)")
        each.add_argument("--division", type=Division, choices=list(Division), default=Division.CLOSED,
                          help="closed (default) or open")
    show.set_defaults(verb=_show)
    diff.set_defaults(verb=_diff)
    for each in (listing, show, diff):
        each.add_argument("--json", action="store_true", help="print it as JSON")


def _list(arguments: argparse.Namespace) -> int:
    found = [{"name": version.name, "summary": version.summary, "requirements": len(version.requirements),
              **_numbers(version)} for version in VERSIONS]
    if arguments.json:
        print(json.dumps(found))
    for item in () if arguments.json else found:
        _say(f"{item['name']}  checker {item['checker']}, {item['needed']} of {item['validation_tasks']} tasks, "
             f"{item['requirements']} requirements: {item['summary']}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    version, division = _named(arguments.name), arguments.division
    batches = _batches(arguments, version)
    found = [_entry(version, item, batches) for item in _asked(version, division)]
    if arguments.json:
        print(json.dumps({"name": version.name, "division": division, "batch": arguments.batch, **_numbers(version),
                          "requirements": found}))
        return 0
    _say(f"{version.name}: {version.summary}, {division} division")
    for name, value in _numbers(version).items():
        _say(f"  {name}: {_words(value)}")
    for item in found:
        _say(f"{item['rule']}: {item['wanted']}" + (f" (MLLOG {item['mllog']})" if item["mllog"] else ""))
        _say_why(item["why"])
    return 0


def _diff(arguments: argparse.Namespace) -> int:
    before, after, division = _named(arguments.before), _named(arguments.after), arguments.division
    found = list(_differences(before, after, division, _batches(arguments, before, after)))
    if arguments.json:
        print(json.dumps({"before": before.name, "after": after.name, "division": division, "batch": arguments.batch,
                          "differences": found}))
        return 0
    _say(f"{before.name} -> {after.name}, {division} division: {len(found)} difference{'s' * (len(found) != 1)}")
    for item in found:
        _say(f"{item['rule']}: {item['before'] or 'no rule'} -> {item['after'] or 'no rule'}")
        _say_why(item["why"])
    return 0


def _differences(before: Rules, after: Rules, division: Division, batches: Sequence[int]) -> Iterator[dict[str, str]]:
    """First the numbers, then every requirement that one has and the other has not, or has otherwise."""
    numbers = _numbers(before), _numbers(after)
    for name, value in numbers[0].items():
        if value != numbers[1][name]:
            yield {"rule": name, "before": _words(value), "after": _words(numbers[1][name]), "why": ""}
    sides = [{item.rule: _entry(version, item, batches) for item in _asked(version, division)}
             for version in (before, after)]
    for rule in dict.fromkeys((*sides[0], *sides[1])):
        one, other = (side.get(rule, {"wanted": "", "why": ""}) for side in sides)
        if one["wanted"] != other["wanted"]:
            yield {"rule": rule, "before": one["wanted"], "after": other["wanted"], "why": other["why"] or one["why"]}


def _entry(version: Rules, item: Requirement, batches: Sequence[int]) -> dict[str, Any]:
    """A requirement as data: where its value is looked for, and what is wanted at which batch."""
    by_batch = {batch: item.wanted_at(version, batch) for batch in batches}
    words = {batch: wanted_words(item, value) for batch, value in by_batch.items()}
    one = len(set(words.values())) == 1
    told = next(iter(words.values())) if one else (
        f"{item.wanted.words}: {', '.join(words.values())} at batch {', '.join(map(str, words))}")
    return {"rule": item.rule, "wanted": told + (", not binding" if item.bound is Bound.REFERENCE else ""),
            "values": {batch: None if value is Nothing.WANTED else value for batch, value in by_batch.items()},
            "bound": item.bound, "divisions": sorted(item.divisions), "at": list(item.at), "mllog": item.mllog,
            "why": item.why}


def _asked(version: Rules, division: Division) -> Sequence[Requirement]:
    return [item for item in version.requirements if division in item.divisions]


def _batches(arguments: argparse.Namespace, *versions: Rules) -> Sequence[int]:
    """The one that was given, else all that the tables of these versions have in common."""
    first, *others = ([arguments.batch] if arguments.batch else version.batches for version in versions)
    return [batch for batch in first if all(batch in other for other in others)]


def _say(line: str) -> None:
    tell(line, indent=6)


def _say_why(why: str) -> None:
    if why:
        tell(f"    {why}", indent=4)


def _words(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _numbers(version: Rules) -> Mapping[str, Any]:
    """What a version says beside its requirements."""
    return {**{name: getattr(version, name) for name in _SHARED}, "target": float(version.target),
            "needed": version.needed(version.validation_tasks), "batches": list(version.batches),
            "demanded in logs": sorted(version.logged)}


def _named(name: str) -> Rules:
    if name not in _BY_NAME:
        raise InputError(f"there are no rules {name!r}", hint=f"there is: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def _batch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 2**31 - 1):
        raise argparse.ArgumentTypeError(f"should be an integer from 1 on, got {text!r}")
    return int(text)
