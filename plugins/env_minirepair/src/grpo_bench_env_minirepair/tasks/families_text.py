"""Families over text and dicts."""

from __future__ import annotations

import random
from typing import Any

from .grammar import RETURN, Family, Slot, Values
from .pieces import (
    CHANGES_K, CONDITION, CONDITION_FAULTS, CONDITIONS, TEXT, A, K, X,
    each,
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
