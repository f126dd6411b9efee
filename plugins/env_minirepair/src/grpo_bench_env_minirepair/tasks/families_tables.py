"""Families over two lists or a list of lists."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values, integers
from .pieces import (
    CHANGES, CHANGES_K, COMPARE, COMPARISONS, CONDITION, CONDITION_FAULTS, CONDITIONS, FINISH, FINISHES, A, K, X, XS,
    Y, YS, each,
)


class Pairs(Family):
    """Two lists side by side."""

    signature = "{xs}, {ys}"
    roles = {"xs": XS, "ys": YS, "x": X, "y": Y, "a": A}
    pair_changes = {"{x} + {y}": "sum", "{x} - {y}": "difference", "{x} * {y}": "product", "max({x}, {y})": "larger",
                    "min({x}, {y})": "smaller", "{x} * 2 + {y}": "sum with {x} doubled"}
    slots = {
        "kind": Slot("wrong kind", ("list", "sum")),
        "ys": Slot("wrong order", ("{ys}", "{ys}[::-1]", "{ys}[1:]"), ("{xs}",)),
        "if": Slot("wrong condition", COMPARISONS),
        "change": Slot("wrong expression", tuple(pair_changes)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "finish": Slot("wrong result", FINISHES),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        ys = {"{ys}": "", "{ys}[::-1]": " in reverse", "{ys}[1:]": " but the first"}[v["ys"]]
        finish = FINISH[v["finish"]] if v["kind"] == "sum" else ""
        return (f"the {v['kind']} of the {self.pair_changes[v['change']]} of each {{x}} in {{xs}} and {{y}} in {{ys}}"
                f"{ys} with {{x}} {COMPARE[v['if']]} {{y}}{finish}")

    def body(self, v: Values) -> list[str]:
        listed = v["kind"] == "list"
        sum_sign = "-=" if v["sign"] else "+="
        return [
            "{a} = []" if listed else "{a} = 0",
            f"for {{x}}, {{y}} in zip({{xs}}, {v['ys']}):",
            f"    if {{x}} {v['if']} {{y}}:",
            f"        {{a}}.append({v['change']})" if listed else f"        {{a}} {sum_sign} {v['change']}",
            f"{v['return']}{'{a}' if listed else v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [integers(r, -3, 5, 4), integers(r, -3, 5, 4)]


class Table(Family):
    """All cells of a table."""

    signature = "{xs}, {k}"
    roles = {"xs": ("rows", "grid", "table", "board"), "y": ("row", "bar", "strip"), "x": ("cell", "x", "v"), "k": K,
             "a": A}
    slots = {
        "kind": Slot("wrong kind", ("sum", "number", "product")),
        "rows": Slot("off by one", ("{xs}", "{xs}[1:]", "{xs}[:-1]"), ("{xs}[2:]",)),
        "cells": Slot("off by one", ("{y}", "{y}[1:]", "{y}[:-1]", "{y}[::2]")),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES, ("{k}",)),
        "sign": Slot("wrong operator", FIXED, ("bad",)),
        "return": RETURN,
    }
    part = {"": "", "[1:]": " but the first", "[:-1]": " but the last", "[::2]": " at even places"}

    def words(self, v: Values) -> str:
        change = each(v["change"]) if v["kind"] != "number" else ""
        return (f"the {v['kind']} of cells{self.part[v['cells'][3:]]} in every row of {{xs}}{self.part[v['rows'][4:]]}"
                f"{CONDITION[v['if']]}{change}")

    def body(self, v: Values) -> list[str]:
        sign = "-=" if v["sign"] else "*=" if v["kind"] == "product" else "+="
        return [
            f"{{a}} = {int(v['kind'] == 'product')}",
            f"for {{y}} in {v['rows']}:",
            f"    for {{x}} in {v['cells']}:",
            f"        if {v['if']}:",
            f"            {{a}} {sign} {'1' if v['kind'] == 'number' else v['change']}",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [[integers(r, -3, 5, 3) for _ in range(3)], r.randint(-2, 4)]


class Rows(Family):
    """One value for each row that passes a test."""

    signature = "{xs}, {k}"
    roles = {"xs": ("rows", "grid", "table", "board"), "y": ("row", "bar", "strip"), "x": X, "k": K, "a": A}
    calls = {"sum({y})": "sum", "max({y})": "largest", "min({y})": "smallest", "{y}[0]": "first", "{y}[-1]": "last",
             "len({y})": "length"}
    slots = {
        "rows": Slot("off by one", ("{xs}", "{xs}[1:]", "{xs}[:-1]", "{xs}[::-1]"), ("{xs}[2:]",)),
        "call": Slot("wrong call", tuple(calls)),
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        rows = {"{xs}": "", "{xs}[1:]": " but the first", "{xs}[:-1]": " but the last", "{xs}[::-1]": " in reverse"}
        return (f"the list of the {self.calls[v['call']]} of each row of {{xs}}{rows[v['rows']]}, those"
                f"{CONDITION[v['if']]}{each(v['change'])}")

    def body(self, v: Values) -> list[str]:
        return [
            "{a} = []",
            f"for {{y}} in {v['rows']}:",
            f"    {{x}} = {v['call']}",
            f"    if {v['if']}:",
            f"        {{a}}.append({v['change']})",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return [[integers(r, -3, 5, r.randint(1, 3)) for _ in range(4)], r.randint(-2, 4)]
