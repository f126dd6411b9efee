"""Pieces that families share: code templates with the words that mean them, and identifiers for roles.

Templates speak of an element ``{x}``, a list ``{xs}`` and a limit ``{k}``. Words follow the thing they describe.
"""

from __future__ import annotations

COMPARE = {">": "above", "<": "below", ">=": "at least", "<=": "at most", "==": "equal to", "!=": "other than"}
COMPARISONS = tuple(COMPARE)

CONDITION = {f"{{x}} {sign} {{k}}": f" {words} {{k}}" for sign, words in COMPARE.items()} | {
    "{x} % 2 == 0": " that are even",
    "{x} % 2 == 1": " that are odd",
    "{x} > 0": " above 0",
    "{x} < 0": " below 0",
    "{x} != 0": " other than 0",
    "{x} % 3 == 0": " divisible by 3",
    "{x} % 3 != 0": " not divisible by 3",
    "abs({x}) > {k}": " of size above {k}",
    "abs({x}) < {k}": " of size below {k}",
}
CONDITIONS = tuple(CONDITION)
CONDITION_FAULTS = ("{k} > {x}", "{x} > {x}")

CHANGE = {
    "{x}": "",
    "{x} * 2": " doubled",
    "{x} * {x}": " squared",
    "{x} + 1": " plus 1",
    "{x} - 1": " minus 1",
    "-{x}": " negated",
    "abs({x})": " unsigned",
    "{x} // 2": " halved",
    "{x} % 3": " modulo 3",
    "{x} * 3": " tripled",
}
CHANGE_K = {"{x} + {k}": " plus {k}", "{x} * {k}": " times {k}", "{x} - {k}": " minus {k}"}
CHANGES = tuple(CHANGE)
CHANGES_K = (*CHANGES, *CHANGE_K)
CHANGE |= CHANGE_K

SLICE = {"{xs}": "", "{xs}[1:]": " but the first", "{xs}[:-1]": " but the last", "{xs}[::2]": " at even places"}
SLICES = tuple(SLICE)
ORDER = SLICE | {"{xs}[::-1]": " in reverse", "sorted({xs})": " in order"}
ORDERS = tuple(ORDER)

FINISH = {"{a}": "", "{a} + 1": ", plus 1", "{a} * 2": ", doubled", "-{a}": ", negated", "{a} - {k}": ", minus {k}"}
FINISHES = ("{a}", "{a} + 1", "{a} * 2", "-{a}")
FINISHES_K = tuple(FINISH)

FUNCTIONS = (
    "tally", "score", "pick", "scan", "merge", "rank", "fold", "gauge", "price", "trim", "weigh", "sift", "parse",
    "shift", "adjust", "measure", "collect", "reduce", "solve", "check", "build", "choose", "inspect", "compute",
)
XS = ("xs", "items", "values", "nums", "data", "seq", "marks", "units")
YS = ("ys", "others", "costs", "hours")
X = ("x", "v", "item", "n", "e", "m")
Y = ("y", "w", "u", "p")
K = ("k", "limit", "t", "bound", "cut", "base")
I = ("i", "j", "q")  # noqa: E741
A = ("acc", "out", "res", "total", "r", "s")
TEXT = ("text", "line", "name", "path")


def each(change: str) -> str:
    """The words of a change that is made to every element."""
    return f", each{CHANGE[change]}" if CHANGE[change] else ""
