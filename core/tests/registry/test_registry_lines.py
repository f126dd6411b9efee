"""The line index against texts whose lines are known, and against everything tomllib accepts."""

from __future__ import annotations

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from grpo_bench.registry.lines import line_index

TEXT = '''# a comment with = and [brackets]
top = 1

[a.b]  # header
one = "x # no comment"
"odd = key".inner = [ 1,
  2, # two
  { deep = 3 } ]
long = """
[not.a.header]
x = 1 \\""" still in
"""
last = {p = 1, q.r = 'q'}

[[list]]
n = 1
[[list]]
n = 2
[list.sub]
m = 1979-05-27 07:32:00
'''


def test_lines_of_headers_keys_items_and_inline_tables() -> None:
    lines = line_index(TEXT)
    assert lines["top",] == 2
    assert lines["a",] == lines["a", "b"] == 4
    assert lines["a", "b", "one"] == 5
    assert lines["a", "b", "odd = key", "inner"] == 6
    assert lines["a", "b", "odd = key", "inner", 1] == 7
    assert lines["a", "b", "odd = key", "inner", 2, "deep"] == 8
    assert lines["a", "b", "long"] == 9
    assert lines["a", "b", "last", "q", "r"] == 13
    assert lines["list", 0, "n"] == 16
    assert lines["list", 1, "n"] == 18
    assert lines["list", 1, "sub", "m"] == 20
    assert not any("not" in path or "x" in path for path in lines)


def test_windows_line_ends_count_once() -> None:
    assert line_index("a = 1\r\n\r\nb = '''x\r\ny'''\r\nc = 3\r\n") == {("a",): 1, ("b",): 3, ("c",): 5}


def paths(value: Any, path: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path} | {found for key, item in items for found in paths(item, (*path, key))}


KEY = st.from_regex(r"""[a-z]{1,2}|"[^"\\\x00-\x1f\x7f]{0,3}"|'[^'\x00-\x1f\x7f]{0,3}'""", fullmatch=True)
DOTTED = st.lists(KEY, min_size=1, max_size=3).map(" . ".join)
SCALAR = st.sampled_from(["1", "0x1f", "1e3", "true", "inf", '"a\\"b]"', "'c]}#,'", '"""x\n"y""""', "'''\n''#]'''",
                          '""', "1979-05-27 07:32:00", "07:32:00"])
VALUE = st.recursive(SCALAR, lambda inner: st.one_of(
    st.lists(inner, max_size=3).map(lambda items: "[ # x\n" + ",\n".join(items) + "\n]"),
    st.lists(st.tuples(DOTTED, inner).map(" = ".join), max_size=2).map(lambda items: "{" + ", ".join(items) + "}")))
LINE = st.one_of(st.tuples(DOTTED, VALUE).map(lambda pair: " = ".join(pair) + " # end"), DOTTED.map("[{}]".format),
                 DOTTED.map("[[ {} ]]".format), st.just("# [c]"), st.just(""))


@given(st.lists(LINE, max_size=8).map("\n".join))
def test_every_value_tomllib_reads_has_a_line_and_no_other_has(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = line_index(text)
    assert set(lines) == paths(data) - {()}
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
