"""Unified diffs, made and applied."""

from __future__ import annotations

import pytest
from grpo_bench_env_minirepair.patch import PatchError, apply, make
from hypothesis import given
from hypothesis import strategies as st

LINE = st.text("ab-+@ \\\r\x0c", max_size=4)
TEXT = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=12), st.sampled_from(["", "\n"]))
SEVEN = "".join(f"line {number}\n" for number in range(7))


@given(TEXT, TEXT)
def test_applying_what_was_made_gives_the_new_text(old: str, new: str) -> None:
    assert apply(make({"a.py": old}, {"a.py": new}), "a.py", old) == new


@given(TEXT)
def test_no_change_makes_an_empty_patch(text: str) -> None:
    assert make({"a.py": text}, {"a.py": text}) == ""
    assert apply("", "a.py", text) == text


@given(TEXT, TEXT, TEXT, TEXT)
def test_other_files_are_left_out(old: str, new: str, other: str, changed: str) -> None:
    patch = make({"a.py": old, "b.py": other}, {"a.py": new, "b.py": changed, "c.py": "x\n"})
    assert apply(patch, "a.py", old) == new


def test_a_hunk_is_found_where_it_has_moved_to() -> None:
    patch = make({"a.py": SEVEN}, {"a.py": SEVEN.replace("line 5", "line five")})
    assert apply(patch, "a.py", "new\nnew\n" + SEVEN) == "new\nnew\n" + SEVEN.replace("line 5", "line five")


def test_a_patch_in_gits_form_applies() -> None:
    patch = ("diff --git a/a.py b/a.py\nindex 1234567..89abcde 100644\n--- a/a.py\n+++ b/a.py\n"
             "@@ -1,3 +1,3 @@ def f():\n line 0\n-line 1\n+LINE 1\n line 2\n")
    assert apply(patch, "a.py", SEVEN) == SEVEN.replace("line 1", "LINE 1")


@pytest.mark.parametrize("patch", [
    "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n line 0\n-line 9\n+x\n",
    "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n line 0\n",
    "--- a/a.py\n+++ b/a.py\n@@ nonsense @@\n line 0\n",
    f"--- a/a.py\n+++ b/a.py\n@@ -{'9' * 5000} +1 @@\n line 0\n",
    "--- a/a.py\n+++ b/a.py\n@@ -1,1 +1,1 @@\n*line 0\n",
    "@@ -1,1 +1,1 @@\n-line 0\n+x\n",
])
def test_what_does_not_fit_is_refused(patch: str) -> None:
    with pytest.raises(PatchError):
        apply(patch, "a.py", SEVEN)


@given(st.text("-+@ a1,\n/b.py\\", max_size=60))
def test_junk_is_refused_or_changes_nothing_unsaid(junk: str) -> None:
    try:
        apply(junk, "a.py", SEVEN)
    except PatchError:
        pass
