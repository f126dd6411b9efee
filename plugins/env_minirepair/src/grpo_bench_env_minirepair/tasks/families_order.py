"""Families in which the order of one list's elements matters."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values, integers
from .pieces import (
    CHANGES, COMPARE, COMPARISONS, FINISH, FINISHES, ORDER, ORDERS, SLICE, SLICES, A, I, K, X, XS, each,
)


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
