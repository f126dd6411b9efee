"""Families over text, pairs of lists, tables and dicts."""

from __future__ import annotations

import random
from typing import Any

from .grammar import FIXED, RETURN, Family, Slot, Values, integers
from .pieces import (
    CHANGES, CHANGES_K, COMPARE, COMPARISONS, CONDITION, CONDITION_FAULTS, CONDITIONS, FINISH, FINISHES, TEXT, A, K, X,
    XS, Y, YS, each,
)


class Words(Family):
    """Parts of a text, changed and joined again."""

    signature = "{t}, {k}"
    roles = {"t": TEXT, "k": ("sep", "mark", "sign"), "a": ("parts", "bits", "chunks"), "x": ("w", "p", "b")}
    methods = {"upper": "in upper case", "lower": "in lower case", "title": "in title case", "strip": "stripped",
               "swapcase": "in swapped case"}
    slices = {"": "", "[1:]": " but the first", "[:-1]": " but the last", "[::-1]": " in reverse",
              "[:2]": ", first 2 only"}
    tests = {"": "", " if {x}": " that are not empty", " if len({x}) > 1": " longer than 1",
             " if len({x}) < 3": " shorter than 3", " if {x}.islower()": " in lower case only"}
    slots = {
        "slice": Slot("off by one", tuple(slices), ("[2:]",)),
        "method": Slot("wrong call", tuple(methods)),
        "if": Slot("wrong condition", tuple(tests), (" if not {x}",)),
        "join": Slot("wrong constant", ("-", "+", "/", "", " "), (".",)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        join = {"": "nothing", " ": "spaces"}.get(v["join"], v["join"])
        return (f"the parts of {{t}} between {{k}}{self.slices[v['slice']]}{self.tests[v['if']]},"
                f" {self.methods[v['method']]}, joined by {join}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {{t}}.split({{k}}){v['slice']}",
            f"{{a}} = [{{x}}.{v['method']}() for {{x}} in {{a}}{v['if']}]",
            f"{v['return']}'{v['join']}'.join({{a}})",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        mark = r.choice(",;:")
        return [mark.join(r.choice(["aB", "Cd ", "e", "gh", " IJ", "kLm", ""]) for _ in range(r.randint(2, 4))), mark]


class Letters(Family):
    """Characters that pass a test, gathered or counted."""

    signature = "{t}"
    roles = {"t": TEXT, "x": ("c", "ch", "z"), "a": A}
    tests = {"{x}.isupper()": "upper case letters", "{x}.islower()": "lower case letters", "{x}.isdigit()": "digits",
             "{x}.isalpha()": "letters", "{x} in 'aeiou'": "vowels", "{x} not in 'aeiou'": "signs other than vowels",
             "not {x}.isdigit()": "signs other than digits"}
    changes_ = {"{x}": "", "{x}.upper()": " in upper case", "{x}.lower()": " in lower case", "{x} * 2": " doubled",
                "{x} + '-'": " with a dash after each", "'<' + {x}": " with a hook before each"}
    sources = {"{t}": "", "{t}[1:]": " but the first", "{t}[:-1]": " but the last", "{t}[::2]": " at even places"}
    ends = {"{a}": "", "{a}[::-1]": ", turned round", "len({a})": ", counted", "{a} + '.'": ", with a point at the end",
            "{a}[:3]": ", first 3 only"}
    slots = {
        "start": Slot("wrong start", ("''",), ("' '",)),
        "source": Slot("off by one", tuple(sources), ("{t}[2:]",)),
        "if": Slot("wrong condition", tuple(tests)),
        "change": Slot("wrong expression", tuple(changes_)),
        "finish": Slot("wrong result", tuple(ends)),
        "return": RETURN,
    }

    def words(self, v: Values) -> str:
        return (f"the {self.tests[v['if']]} of {{t}}{self.sources[v['source']]}{self.changes_[v['change']]}"
                f"{self.ends[v['finish']]}")

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {v['start']}",
            f"for {{x}} in {v['source']}:",
            f"    if {v['if']}:",
            f"        {{a}} += {v['change']}",
            f"{v['return']}{v['finish']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        return ["".join(r.choice("abeioXYZQ1278 ") for _ in range(r.randint(4, 8)))]


class Tally(Family):
    """A dict of values gathered by key."""

    signature = "{xs}, {k}"
    roles = {"xs": ("pairs", "rows", "logs", "bids"), "n": ("name", "key", "tag"), "x": X, "k": K, "a": A}
    slots = {
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "key": Slot("wrong variable", ("{n}", "{n} * 2", "{n}.upper()"), ("{x}",)),
        "start": Slot("wrong start", ("0", "1", "{k}"), ("2",)),
        "sign": Slot("wrong operator", ("+", "-", "*")),
        "change": Slot("wrong expression", ("{x}", "1", "abs({x})")),
        "return": RETURN,
    }
    key_words = {"{n}": "{n}", "{n} * 2": "doubled {n}", "{n}.upper()": "upper case {n}"}
    sign_words = {"+": "plus", "-": "minus", "*": "times"}

    def words(self, v: Values) -> str:
        added = {"{x}": "the {x}", "1": "1", "abs({x})": "the {x} unsigned"}[v["change"]]
        return (f"a dict of {self.key_words[v['key']]} to {v['start']} {self.sign_words[v['sign']]} {added} for each"
                f" {{x}}{CONDITION[v['if']]}")

    def body(self, v: Values) -> list[str]:
        return [
            "{a} = {{}}",
            "for {n}, {x} in {xs}:",
            f"    if {v['if']}:",
            f"        {{n}} = {v['key']}",
            f"        {{a}}[{{n}}] = {{a}}.get({{n}}, {v['start']}) {v['sign']} {v['change']}",
            f"{v['return']}{{a}}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        rows = [[r.choice("ab"), r.randint(-3, 5)] for _ in range(r.randint(3, 6))]
        return [rows, r.choice([row[1] for row in rows])]


class Select(Family):
    """A dict filtered and changed."""

    signature = "{xs}, {k}"
    roles = {"xs": ("table", "prices", "stock", "ages"), "n": ("name", "key", "tag"), "x": X, "k": K, "a": A}
    slots = {
        "if": Slot("wrong condition", CONDITIONS, CONDITION_FAULTS),
        "change": Slot("wrong expression", CHANGES_K, ("{k}",)),
        "what": Slot("wrong result", ("{a}", "sorted({a})", "len({a})", "sum({a}.values())", "list({a}.values())"),
                     ("{xs}",)),
        "return": RETURN,
    }
    what_words = {"{a}": "the dict", "sorted({a})": "the sorted keys", "len({a})": "the number",
                  "sum({a}.values())": "the sum", "list({a}.values())": "the list"}

    def words(self, v: Values) -> str:
        return f"{self.what_words[v['what']]} of entries in {{xs}} with {{x}}{CONDITION[v['if']]}{each(v['change'])}"

    def body(self, v: Values) -> list[str]:
        return [
            f"{{a}} = {{{{{{n}}: {v['change']} for {{n}}, {{x}} in {{xs}}.items() if {v['if']}}}}}",
            f"{v['return']}{v['what']}",
        ]

    def arguments(self, r: random.Random) -> list[Any]:
        table = {key: r.randint(-4, 6) for key in "abcde"[: r.randint(3, 5)]}
        return [table, r.choice([*table.values(), r.randint(-2, 4)])]


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


TEXT_FAMILIES = (Words, Letters, Tally, Select, Pairs, Table, Rows)
