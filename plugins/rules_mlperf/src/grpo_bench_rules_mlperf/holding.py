"""Requirements held against what is known of a run before it starts.

What is known is one mapping: the profile, under ``facts`` what each part says of itself, under ``model`` the policy's
table where its checkpoint is here, under ``missing`` what this machine lacks. What is not said breaks a rule, but where
something is missing that could have said it: that is not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from grpo_bench.contract import Finding

from .policy import model_table
from .rules import Bound, Division, Nothing, Requirement, Rules

_TOLD = ("facts.", "model.")
"""Where values stand that parts and checkpoint tell, and no setting."""


def findings(rules: Rules, batch: int, division: Division, known: Mapping[str, Any]) -> Iterator[Finding]:
    """A verdict on every requirement that binds in the division and that can be asked about."""
    refused: set[str] = set()
    for item in rules.requirements:
        if division not in item.divisions or item.given in refused:
            continue
        finding = _verdict(item, item.wanted_at(rules, batch), known)
        if finding is not None:
            yield finding
            refused |= {item.rule} if not (finding.ok or finding.unknown) else set()


def model_findings(rules: Rules, config: Mapping[str, Any], division: Division) -> tuple[Finding, ...]:
    """Verdicts on what a checkpoint's ``config.json`` holds."""
    about = {item.rule for item in rules.requirements if item.at[0].startswith("model.")}
    found = findings(rules, rules.reference_batch, division, {"model": model_table(config)})
    return tuple(finding for finding in found if finding.rule in about)


def value_at(values: Any, dotted: str) -> Any:
    """A value by its path; what a table that is absent would hold is absent."""
    if isinstance(values, Mapping) and dotted in values:
        return values[dotted]
    head, _, rest = dotted.partition(".")
    if isinstance(values, Mapping) and head in values:
        return value_at(values[head], rest) if rest else values[head]
    if isinstance(values, Sequence) and not isinstance(values, str) and head.isdecimal() and int(head) < len(values):
        return value_at(values[int(head)], rest) if rest else values[int(head)]
    return Nothing.SAID


def _key_of(item: Requirement, known: Mapping[str, Any]) -> str:
    """The profile's key that decides a value: of several the first that the profile has."""
    keys = [_whole(place) for place in item.at if not place.startswith(_TOLD)]
    alone = item.at[0] if keys and len(item.at) == 1 else ""
    return item.key or next((key for key in keys if value_at(known, key) is not Nothing.SAID), alone)


def _holds(item: Requirement, found: Any, wanted: Any) -> bool:
    """Whether a value keeps a rule that wants ``wanted``."""
    match item.bound:
        case Bound.REFERENCE:
            return True
        case Bound.AT_LEAST:
            return _is_number(found) and found >= wanted
        case Bound.EQUAL:
            return any(_same(found, value, item.tolerance) for value in (wanted, *item.also))


def shown(value: Any) -> str:
    """A value for people."""
    if isinstance(value, Nothing):
        return value.value
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else "none" if value is None else str(value)


def wanted_words(item: Requirement, wanted: Any) -> str:
    """What a requirement wants, for people."""
    words = " or ".join(map(shown, (wanted, *item.also)))
    return f"at least {words}" if item.bound is Bound.AT_LEAST else words


def _verdict(item: Requirement, wanted: Any, known: Mapping[str, Any]) -> Finding | None:
    if wanted is Nothing.WANTED:
        return None
    said = (value_at(known, place) for place in item.at)
    found = next((value for value in said if value is not Nothing.SAID), item.unset)
    key, words = _key_of(item, known), wanted_words(item, wanted)
    if item.bound is Bound.REFERENCE:
        return None if found is Nothing.SAID else Finding(
            item.rule, True, f"{shown(found)}, as the reference" if _same(found, wanted, 0.0) else
                             f"{shown(found)}; the reference has {words}", key, item.why)
    if found is Nothing.SAID:
        unknown = bool(known.get("missing")) and any(place.startswith(_TOLD) for place in item.at)
        return Finding(item.rule, False, f"{'not known here' if unknown else 'not said'}; the rules want {words}", key,
                       item.why, _fix(item, key, wanted), unknown)
    if _holds(item, found, wanted):
        return Finding(item.rule, True, shown(found), key, item.why)
    return Finding(item.rule, False, f"{shown(found)}; the rules want {words}", key, item.why, _fix(item, key, wanted))


def _fix(item: Requirement, key: str, wanted: Any) -> str:
    if item.fix or not key:
        return item.fix
    more = " or more" if item.bound is Bound.AT_LEAST else ""
    place = next((place for place in item.at if place.startswith(f"{key}.")), key)
    value = json.dumps("off" if wanted is None else wanted)
    return f"set {key} = {value}{more}" if place == key else f"let {place} be {value}"


def _whole(place: str) -> str:
    """The key of the list, for a place inside one."""
    head, _, last = place.rpartition(".")
    return head if last.isdecimal() else place


def _same(found: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, float):
        return _is_number(found) and math.isclose(found, wanted, rel_tol=0, abs_tol=tolerance)
    return found == wanted and type(found) is type(wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
