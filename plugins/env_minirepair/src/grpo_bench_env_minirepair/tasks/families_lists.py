"""Families that pick elements of one list by a test."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values, integers
from .pieces import (
    CHANGE, CHANGES, CHANGES_K, CONDITION, CONDITION_FAULTS, CONDITIONS, FINISH, FINISHES_K, ORDER, ORDERS, SLICE,
    SLICES, A, I, K, X, XS, each,
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
