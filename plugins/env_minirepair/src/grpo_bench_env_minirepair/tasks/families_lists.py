"""Families over one list of integers."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values, integers
from .pieces import (
    CHANGE, CHANGES, CHANGES_K, COMPARE, COMPARISONS, CONDITION, CONDITION_FAULTS, CONDITIONS, FINISH, FINISHES,
    FINISHES_K, ORDER, ORDERS, SLICE, SLICES, A, I, K, X, XS, each,
)


def list_and_limit(r: random.Random) -> list[Any]:
    xs = integers(r)
    return [xs, r.choice([*xs, r.randint(-2, 4)])]


class Fold(Family):
    """Sum, product or number of the elements that pass a test."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "kind": Slot("wrong kind", ("sum", "product", "number")),
        "source": Slot("off by one", SLICES, ("{xs}[2:]",)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "finish": Slot("wrong result", FINISHES_K, ("{k}",)),
        "start": Slot("wrong start", FIXED, ("bad",)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        change = each(v["change"]) if v["kind"] != "number" else ""
        return f"the {v['kind']} of {{xs}}{SLICE[v['source']]}{CONDITION[v['if']]}{change}{FINISH[v['finish']]}"

    def body(self, v: Values) -> list[str]:
        start = (v["kind"] == "product") != bool(v["start"])
        sign = "-=" if v["sign"] else "*=" if v["kind"] == "product" else "+="
        return [
            f"{{a}} = {int(start)}",
            f"for {{x}} in {v['source']}:",
            f"    if {v['if']}:",
            f"        {{a}} {sign} {'1' if v['kind'] == 'number' else v['change']}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Collect(Family):
    """The list of the elements that pass a test, built by a loop."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "source": Slot("off by one", ORDERS, ("{xs}[2:]",)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "start": Slot("wrong start", ("[]",), ("[0]",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        return f"the list of {{xs}}{ORDER[v['source']]}{CONDITION[v['if']]}{each(v['change'])}"

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['start']}",
            f"for {{x}} in {v['source']}:",
            f"    if {v['if']}:",
            f"        {{a}}.append({v['change']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Comprehension(Family):
    """The same as one expression."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "source": Slot("off by one", ORDERS, ("{xs}[2:]",)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "cut": Slot("wrong slice", ("{a}", "{a}[:3]", "{a}[::-1]", "{a}[-2:]"), ("{xs}",)),
        "return": RETURN,
    }
    cut_words = {"{a}": "", "{a}[:3]": ", first 3 only", "{a}[::-1]": ", turned round", "{a}[-2:]": ", last 2 only"}

    def words(self, v: Values) -> str:
        cut = self.cut_words[v["cut"]]
        return f"the list of {{xs}}{ORDER[v['source']]}{CONDITION[v['if']]}{each(v['change'])}{cut}"

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = [{v['change']} for {{x}} in {v['source']} if {v['if']}]",
            f"{v['return']}{v['cut']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Aggregate(Family):
    """A built-in over a generator expression."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "call": Slot("wrong call", ("sum", "max", "min"), ("len",)),
        "source": Slot("off by one", SLICES),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "finish": Slot("wrong result", FINISHES_K, ("{k}",)),
        "return": RETURN,
    }
    call_words = {"sum": "sum", "max": "largest", "min": "smallest"}

    def words(self, v: Values) -> str:
        return (f"the {self.call_words[v['call']]} of {{xs}}{SLICE[v['source']]}{CONDITION[v['if']]}"
                f"{each(v['change'])}{FINISH[v['finish']]}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = [{v['change']} for {{x}} in {v['source']} if {v['if']}]",
            f"{{a}} = {v['call']}({{a}})",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Search(Family):
    """Where, or what, the first or last element that passes a test is."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "i": I}
    slots = {
        "order": Slot("wrong order", ("enumerate({xs})", "reversed(list(enumerate({xs})))")),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "found": Slot("wrong variable", ("{i}", "{x}", "{i} + 1", "{x} * 2", "{x} - {k}"), ("{k}",)),
        "default": Slot("wrong default", ("-1", "None", "0", "{k}"), ("1",)),
    }
    found_words = {"{i}": "place", "{x}": "value", "{i} + 1": "place plus 1", "{x} * 2": "value doubled",
                   "{x} - {k}": "value minus {k}"}

    def words(self, v: Values) -> str:
        order = "last" if "reversed" in v["order"] else "first"
        return f"the {self.found_words[v['found']]} of the {order} of {{xs}}{CONDITION[v['if']]}, else {v['default']}"

    def body(self, v: Values) -> list[str]:
        return [
            f"for {{i}}, {{x}} in {v['order']}:",
            f"    if {v['if']}:",
            f"        return {v['found']}",
            f"return {v['default']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Neighbours(Family):
    """Count or collect over places where an element compares to an earlier one."""

    signature = "{xs}"
    roles = {"xs": XS, "i": I, "a": A}
    slots = {
        "kind": Slot("wrong kind", ("number of places", "sum of items", "sum of steps")),
        "lag": Slot("off by one", ("1", "2")),
        "if": Slot("wrong condition", COMPARISONS),
        "first": Slot("off by one", FIXED, ("bad",)),
        "start": Slot("wrong start", ("0", "1", "10"), ("2",)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "finish": Slot("wrong result", FINISHES),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        lag = "just before" if v["lag"] == "1" else "two before"
        return (f"{v['start']} plus the {v['kind']} in {{xs}} where the item is {COMPARE[v['if']]} the one {lag}"
                f"{FINISH[v['finish']]}")

    def body(self, v: Values) -> list[str]:
        first = int(v["lag"]) + bool(v["first"])
        added = {"number of places": "1", "sum of items": "{xs}[{i}]",
                 "sum of steps": f"{{xs}}[{{i}}] - {{xs}}[{{i}} - {v['lag']}]"}[v["kind"]]
        return [
            f"{{a}} = {v['start']}",
            f"for {{i}} in range({first}, len({{xs}})):",
            f"    if {{xs}}[{{i}}] {v['if']} {{xs}}[{{i}} - {v['lag']}]:",
            f"        {{a}} {'-=' if v['sign'] else '+='} {added}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [integers(r, 0, 4, r.randint(4, 7))]


class Best(Family):
    """Running maximum or minimum of a key."""

    signature = "{xs}"
    roles = {"xs": XS, "x": X, "a": ("best", "top", "cur", "lead")}
    keys = ("{x}", "abs({x})", "-{x}", "{x} % 3", "{x} * {x}")
    key_words = {"{x}": "", "abs({x})": " by size", "-{x}": " by negation", "{x} % 3": " by rest modulo 3",
                 "{x} * {x}": " by square"}
    slots = {
        "if": Slot("wrong condition", (">", "<", ">=", "<="), ("==",)),
        "key": Slot("wrong expression", keys),
        "source": Slot("off by one", SLICES),
        "first": Slot("wrong start", ("{xs}[0]",), ("{xs}[1]", "0")),
        "take": Slot("wrong variable", ("{x}",), ("-{x}", "{xs}[0]")),
        "finish": Slot("wrong result", FINISHES),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        kind = "largest" if ">" in v["if"] else "smallest"
        tie = "last" if "=" in v["if"] else "first"
        return f"the {tie} {kind}{self.key_words[v['key']]} of {{xs}}{SLICE[v['source']]}{FINISH[v['finish']]}"

    def body(self, v: Values) -> list[str]:
        other = v["key"].replace("{x}", "{a}")
        return [
            f"{{a}} = {v['first']}",
            f"for {{x}} in {v['source']}:",
            f"    if {v['key']} {v['if']} {other}:",
            f"        {{a}} = {v['take']}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [integers(r)]


class TakeWhile(Family):
    """Elements up to the first that passes a test."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "source": Slot("off by one", ORDERS),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "stop": Slot("wrong jump", ("break",), ("continue", "return {x}")),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        return f"the list of {{xs}}{ORDER[v['source']]} up to the first{CONDITION[v['if']]}{each(v['change'])}"

    def body(self, v: Values) -> list[str]:
        return [
            "{a} = []",
            f"for {{x}} in {v['source']}:",
            f"    if {v['if']}:",
            f"        {v['stop']}",
            f"    {{a}}.append({v['change']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Either(Family):
    """Two different changes, chosen by a test."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    slots = {
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "then": Slot("wrong expression", CHANGES, ("{k}",)),
        "else": Slot("wrong expression", CHANGES),
        "up": Slot("wrong operator", ("+=", "-=")),
        "down": Slot("wrong operator", ("+=", "-=")),
        "start": Slot("wrong start", ("0", "1", "{k}"), ("2",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        verb = {"+=": "adding", "-=": "taking"}
        return (f"{v['start']} after {verb[v['up']]} the {{xs}}{CONDITION[v['if']]}{CHANGE[v['then']]}"
                f" and {verb[v['down']]} the rest{CHANGE[v['else']]}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['start']}",
            "for {x} in {xs}:",
            f"    if {v['if']}:",
            f"        {{a}} {v['up']} {v['then']}",
            "    else:",
            f"        {{a}} {v['down']} {v['else']}",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return list_and_limit(r)


class Running(Family):
    """The list of running sums or products."""

    signature = "{xs}"
    roles = {"xs": XS, "x": X, "s": ("cum", "state", "z"), "a": A}
    slots = {
        "kind": Slot("wrong kind", ("sums", "products", "differences")),
        "source": Slot("off by one", ORDERS),
        "change": Slot("wrong expression", CHANGES),
        "start": Slot("wrong start", ("0", "1", "2"), ("3",)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "keep": Slot("wrong variable", ("{s}", "{s} * 2", "-{s}", "{s} + 1"), ("{x}",)),
        "return": RETURN,
    }
    keep_words = {"{s}": "", "{s} * 2": " doubled", "-{s}": " negated", "{s} + 1": " plus 1"}

    def words(self, v: Values) -> str:
        return (f"the running {v['kind']}{self.keep_words[v['keep']]} of {{xs}}{ORDER[v['source']]}{each(v['change'])},"
                f" from {v['start']}")

    def body(self, v: Values) -> list[str]:
        sign = {"sums": "+=", "products": "*=", "differences": "-="}[v["kind"]]
        wrong = {"+=": "-=", "*=": "+=", "-=": "+="}[sign]
        return [
            "{a} = []",
            f"{{s}} = {v['start']}",
            f"for {{x}} in {v['source']}:",
            f"    {{s}} {wrong if v['sign'] else sign} {v['change']}",
            f"    {{a}}.append({v['keep']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [integers(r, -3, 5, r.randint(3, 5))]


class Sorting(Family):
    """A sorted list, cut and changed."""

    signature = "{xs}, {k}"
    roles = {"xs": XS, "x": X, "k": K, "a": A}
    keys = ("{x}", "abs({x})", "{x} % 3", "-{x}", "{x} % 2")
    key_words = {"{x}": "", "abs({x})": " by size", "{x} % 3": " by rest modulo 3", "-{x}": " by negation",
                 "{x} % 2": " by parity"}
    cuts = ("{a}[:{k}]", "{a}[{k}:]", "{a}[-{k}:]", "{a}[:-{k}]")
    cut_words = {"{a}[:{k}]": "first {k}", "{a}[{k}:]": "all but the first {k}", "{a}[-{k}:]": "last {k}",
                 "{a}[:-{k}]": "all but the last {k}"}
    slots = {
        "key": Slot("wrong expression", keys),
        "source": Slot("off by one", SLICES),
        "cut": Slot("wrong slice", cuts, ("{a}",)),
        "change": Slot("wrong expression", CHANGES, ("{k}",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        return (f"the {self.cut_words[v['cut']]} of {{xs}}{SLICE[v['source']]} sorted{self.key_words[v['key']]}"
                f"{each(v['change'])}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = sorted({v['source']}, key=lambda {{x}}: {v['key']})",
            f"{{a}} = {v['cut']}",
            f"{v['return']}[{v['change']} for {{x}} in {{a}}]",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [integers(r), r.randint(1, 3)]


LIST_FAMILIES = (Fold, Collect, Comprehension, Aggregate, Search, Neighbours, Best, TakeWhile, Either, Running, Sorting)
