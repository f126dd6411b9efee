"""Families over numbers."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values
from .pieces import (
    CHANGE, CHANGES, CHANGES_K, COMPARE, COMPARISONS, CONDITION, CONDITION_FAULTS, CONDITIONS, FINISH, FINISHES, A, I,
    K, X, each,
)


class Branches(Family):
    """A value by where the argument lies between two limits."""

    signature = "{x}, {lo}, {hi}"
    roles = {"x": X, "lo": ("lo", "low", "start", "floor"), "hi": ("hi", "high", "end", "roof")}
    slots = {
        "below": Slot("wrong condition", COMPARISONS),
        "low": Slot("wrong variable", ("{lo}", "0", "{x} * 2", "{hi} - {lo}"), ("{hi}",)),
        "above": Slot("wrong condition", COMPARISONS),
        "high": Slot("wrong variable", ("{hi}", "0", "{x} + 1", "{hi} + {lo}"), ("{lo}",)),
        "else": Slot("wrong expression", CHANGES, ("{lo}",)),
        "return": RETURN,
    }
    what = {"{lo}": "{lo}", "{hi}": "{hi}", "0": "0", "{x} * 2": "twice {x}", "{x} + 1": "{x} plus 1",
            "{hi} - {lo}": "{hi} minus {lo}", "{hi} + {lo}": "{hi} plus {lo}"}

    def words(self, v: Values) -> str:
        return (f"{self.what[v['low']]} for {{x}} {COMPARE[v['below']]} {{lo}}, {self.what[v['high']]} for"
                f" {COMPARE[v['above']]} {{hi}}, else {{x}}{CHANGE[v['else']]}")

    def body(self, v: Values) -> list[str]:
        return [
            f"if {{x}} {v['below']} {{lo}}:",
            f"    return {v['low']}",
            f"if {{x}} {v['above']} {{hi}}:",
            f"    return {v['high']}",
            f"{v['return']}{v['else']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        low = r.randint(-5, 2)
        high = low + r.randint(2, 6)
        return [r.choice([low - 2, low, high, high + 2, r.randint(low, high)]), low, high]


class Labels(Family):
    """A label by two tests of a number."""

    signature = "{x}, {k}"
    roles = {"x": X, "k": K}
    labels = ("low", "mid", "top", "odd", "far")
    slots = {
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "one": Slot("wrong label", labels),
        "or": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "two": Slot("wrong label", labels),
        "else": Slot("wrong label", labels),
    }

    def draw_values(self, r: random.Random) -> dict[str, str]:
        values = super().draw_values(r)
        values["one"], values["two"], values["else"] = r.sample(self.labels, 3)
        return values

    def words(self, v: Values) -> str:
        return (f"{v['one']} for {{x}}{CONDITION[v['if']]}, {v['two']} for {{x}}{CONDITION[v['or']]},"
                f" else {v['else']}")

    def body(self, v: Values) -> list[str]:
        return [
            f"if {v['if']}:",
            f"    return '{v['one']}'",
            f"if {v['or']}:",
            f"    return '{v['two']}'",
            f"return '{v['else']}'",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(-6, 9), r.randint(-3, 5)]


class Range(Family):
    """Sum or product over a range of integers."""

    signature = "{n}"
    roles = {"n": ("n", "size", "stop", "upto"), "x": ("i", "j", "d"), "a": A}
    slots = {
        "kind": Slot("wrong kind", ("sum", "product")),
        "from": Slot("off by one", ("0", "1", "2"), ("3",)),
        "to": Slot("off by one", ("{n}", "{n} + 1", "{n} * 2"), ("{n} - 1",)),
        "step": Slot("wrong step", ("", ", 2", ", 3")),
        "change": Slot("wrong expression", CHANGES, ("{n}",)),
        "start": Slot("wrong start", FIXED, ("bad",)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "finish": Slot("wrong result", FINISHES),
        "return": RETURN,
    }
    to_words = {"{n}": "before {n}", "{n} + 1": "to {n}", "{n} * 2": "before twice {n}"}
    step_words = {"": "", ", 2": " by 2", ", 3": " by 3"}

    def words(self, v: Values) -> str:
        return (f"the {v['kind']} of integers from {v['from']} {self.to_words[v['to']]}{self.step_words[v['step']]}"
                f"{each(v['change'])}{FINISH[v['finish']]}")

    def body(self, v: Values) -> list[str]:
        start = (v["kind"] == "product") != bool(v["start"])
        sign = "-=" if v["sign"] else "*=" if v["kind"] == "product" else "+="
        return [
            f"{{a}} = {int(start)}",
            f"for {{x}} in range({v['from']}, {v['to']}{v['step']}):",
            f"    {{a}} {sign} {v['change']}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(1, 8)]


class Countdown(Family):
    """A while loop that counts down."""

    signature = "{n}"
    roles = {"n": ("n", "left", "fuel", "todo"), "a": A}
    slots = {
        "start": Slot("wrong start", ("0", "1", "5"), ("2",)),
        "while": Slot("wrong condition", ("{n} > 0", "{n} > 1", "{n} >= 0", "{n} > 2")),
        "sign": Slot("wrong operator", ("+=", "-=", "*=")),
        "change": Slot("wrong expression", tuple(change.replace("{x}", "{n}") for change in CHANGES)),
        "step": Slot("wrong step", ("1", "2", "3")),
        "finish": Slot("wrong result", FINISHES),
        "return": RETURN,
    }
    while_words = {"{n} > 0": "above 0", "{n} > 1": "above 1", "{n} >= 0": "at least 0", "{n} > 2": "above 2"}
    sign_words = {"+=": "plus", "-=": "minus", "*=": "times"}

    def words(self, v: Values) -> str:
        change = CHANGE[v["change"].replace("{n}", "{x}")]
        return (f"{v['start']} {self.sign_words[v['sign']]} each {{n}}{change}, down by {v['step']} while"
                f" {self.while_words[v['while']]}{FINISH[v['finish']]}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['start']}",
            f"while {v['while']}:",
            f"    {{a}} {v['sign']} {v['change']}",
            f"    {{n}} -= {v['step']}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(1, 9)]


class Digits(Family):
    """Digits of a number, one after another."""

    signature = "{n}, {k}"
    roles = {"n": ("n", "number", "code", "pin"), "k": K, "x": ("d", "digit", "c"), "a": A}
    slots = {
        "start": Slot("wrong start", ("0", "1", "{k}"), ("2",)),
        "base": Slot("wrong constant", ("10", "2", "8"), ("9",)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES, ("{k}",)),
        "sign": Slot("wrong operator", ("+=", "-=")),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        verb = {"+=": "plus", "-=": "minus"}[v["sign"]]
        return f"{v['start']} {verb} the base {v['base']} digits of {{n}}{CONDITION[v['if']]}{each(v['change'])}"

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['start']}",
            "while {n} > 0:",
            f"    {{n}}, {{x}} = divmod({{n}}, {v['base']})",
            f"    if {v['if']}:",
            f"        {{a}} {v['sign']} {v['change']}",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(5, 9999), r.randint(0, 7)]


class Formula(Family):
    """Three steps of arithmetic."""

    signature = "{x}, {y}, {z}"
    pool = ("g", "b", "c", "x", "y", "z", "w", "h")
    roles = {"x": pool, "y": pool, "z": pool, "a": A}
    signs = ("+", "-", "*")
    sign_words = {"+": "plus", "-": "minus", "*": "times"}
    slots = {
        "one": Slot("wrong operator", signs),
        "order": Slot("swapped operands", ("{x} {sign} {y}", "{y} {sign} {x}")),
        "two": Slot("wrong operator", signs),
        "other": Slot("wrong variable", ("{z}", "{x}", "abs({z})", "{z} * 2"), ("{y}",)),
        "three": Slot("wrong operator", (*signs, "//", "%")),
        "number": Slot("wrong constant", ("2", "3", "4", "5"), ("7",)),
        "return": RETURN,
    }
    other_words = {"{z}": "{z}", "{x}": "{x}", "abs({z})": "unsigned {z}", "{z} * 2": "twice {z}"}

    def words(self, v: Values) -> str:
        one = " ".join(v["order"].replace("{sign}", self.sign_words[v["one"]]).split())
        three = {"//": "divided by", "%": "modulo"} | self.sign_words
        return (f"{one}, then {self.sign_words[v['two']]} {self.other_words[v['other']]},"
                f" then {three[v['three']]} {v['number']}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['order'].replace('{sign}', v['one'])}",
            f"{{a}} {v['two']}= {v['other']}",
            f"{v['return']}{{a}} {v['three']} {v['number']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(-4, 9) for _ in range(3)]


class Repeat(Family):
    """A number changed again and again."""

    signature = "{x}, {k}"
    roles = {"x": X, "k": ("times", "rounds", "turns", "k"), "i": I, "a": ("out", "log", "trail", "acc")}
    slots = {
        "count": Slot("off by one", ("{k}", "{k} + 1", "{k} * 2"), ("{k} - 1",)),
        "if": Slot("wrong condition", ("{x} % 2 == 0", "{x} % 2 == 1", "{x} % 3 == 0", "{x} > 0", "{x} < 0")),
        "then": Slot("wrong expression", ("{x} // 2", "{x} + 1", "{x} * 3", "-{x}", "{x} - 1")),
        "else": Slot("wrong expression", ("{x} * 2", "{x} - 1", "{x} + 1", "{x} + {k}")),
        "keep": Slot("wrong variable", ("{x}", "abs({x})", "{x} % 3", "-{x}"), ("{i}",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        count = {"{k}": "{k}", "{k} + 1": "{k} plus 1", "{k} * 2": "twice {k}"}[v["count"]]
        return (f"the list of {{x}}{CHANGE[v['keep']]} over {count} rounds of {{x}}{CHANGE[v['then']]}"
                f" if{CONDITION[v['if']]} else {{x}}{CHANGE[v['else']]}")

    def body(self, v: Values) -> list[str]:
        return [
            "{a} = []",
            f"for {{i}} in range({v['count']}):",
            f"    {{x}} = {v['then']} if {v['if']} else {v['else']}",
            f"    {{a}}.append({v['keep']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(-5, 9), r.randint(1, 4)]


class Span(Family):
    """The numbers of a range that pass a test."""

    signature = "{n}, {k}"
    roles = {"n": ("n", "size", "span", "upto"), "k": K, "x": ("i", "j", "d"), "a": A}
    slots = {
        "from": Slot("off by one", ("1", "2", "0"), ("3",)),
        "to": Slot("off by one", ("{n}", "{n} + 1"), ("{n} - 1",)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{n}",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        to = {"{n}": "before {n}", "{n} + 1": "to {n}"}[v["to"]]
        return f"the list of integers from {v['from']} {to}{CONDITION[v['if']]}{each(v['change'])}"

    def body(self, v: Values) -> list[str]:
        return [
            "{a} = []",
            f"for {{x}} in range({v['from']}, {v['to']}):",
            f"    if {v['if']}:",
            f"        {{a}}.append({v['change']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [r.randint(3, 8), r.randint(0, 6)]
