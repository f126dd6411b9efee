import pytest
from grpo_bench_env_r2egym.grading import summary

HEAD = "=== short test summary info ===\n"


def verdict(log, expected):
    return summary.agree(summary.results(log), summary.comparable(expected))


@pytest.mark.parametrize(("lines", "found"), [
    ("PASSED a/t.py::test_a\nFAILED a/t.py::test_b - assert 1 == 2\nERROR a/t.py::test_c - OSError",
     {"test_a": "PASSED", "test_b": "FAILED", "test_c": "ERROR"}),
    ("PASSED a/t.py::TestX::test_a", {"TestX.test_a": "PASSED"}),
    ("PASSED a/t.py::test_a[x::y]", {"test_a[x.y]": "PASSED"}),
    ("PASSED a/t.py::test_a[x - y]", {"test_a[x": "PASSED"}),
    ("FAILED a/t.py::test_a - got 'PASSED'", {"test_a": "PASSED"}),
    ("PASSED a/t.py::test_a\nFAILED b/t.py::test_a", {"test_a": "FAILED"}),
    ("FAILED b/t.py::test_a\nPASSED a/t.py::test_a", {"test_a": "PASSED"}),
    ("SKIPPED [1] a/t.py:3: no\nXFAIL a/t.py::test_a\nXPASS a/t.py::test_b\n=== 2 passed in 0.1s ===", {}),
    ("ERROR a/t.py\nERROR b/t.py - SyntaxError", {"": "ERROR"}),
    ("\x1b[32mPASSED\x1b[0m a/t.py::\x1b[1mtest_a\x1b[0m\r", {"test_a": "PASSED"}),
    ("\n\n  PASSED a/t.py::test_a  \nnothing\n", {"test_a  ": "PASSED"}),
    ("PASSED", {"": "PASSED"}),
])
def test_lines_of_a_summary(lines, found):
    assert summary.results(f"before PASSED x::test_no\n{HEAD}{lines}") == found


def test_a_log_without_summary_has_no_results():
    assert summary.results("PASSED a/t.py::test_a") == {}
    assert summary.results("") == {}


def test_what_is_printed_first_wins_and_a_second_head_ends_it():
    log = f"{HEAD}PASSED a::test_a\n{HEAD}FAILED a::test_a\n"
    assert summary.results(log) == {"test_a": "PASSED"}


def test_names_that_become_equal_take_the_last_in_the_order_of_names():
    assert summary.comparable({"a - x": "FAILED", "a": "PASSED"}) == {"a": "FAILED"}
    assert summary.comparable({"a": "FAILED", "a - x": "PASSED"}) == {"a": "PASSED"}
    assert summary.comparable({"\x1b[1ma\x1b[0m": "PASSED"}) == {"a": "PASSED"}


@pytest.mark.parametrize(("lines", "expected", "right"), [
    ("PASSED t::a\nPASSED t::b", {"a": "PASSED", "b": "PASSED"}, True),
    ("PASSED t::b\nFAILED t::a - x", {"a": "FAILED", "b": "PASSED"}, True),
    ("PASSED t::a", {"a": "PASSED", "b": "PASSED"}, False),
    ("PASSED t::a\nPASSED t::b\nPASSED t::c", {"a": "PASSED", "b": "PASSED"}, False),
    ("PASSED t::a\nFAILED t::b", {"a": "PASSED", "b": "PASSED"}, False),
    ("PASSED t::a\nPASSED t::c", {"a": "PASSED", "b": "PASSED"}, False),
    ("PASSED t::a\nERROR t.py", {"a": "PASSED", "": "FAILED"}, True),
    ("PASSED t::a\nERROR t.py", {"a": "PASSED", "b": "PASSED"}, True),
    ("PASSED t::a[1 - 2]", {"a[1 - 2]": "PASSED"}, True),
    ("", {"a": "PASSED"}, False),
])
def test_a_run_is_right_when_it_is_as_expected(lines, expected, right):
    assert verdict(HEAD + lines, expected) is right


def test_nothing_expected_is_refused():
    with pytest.raises(ValueError, match="nothing is expected"):
        verdict("", {})


def test_the_installed_harness_says_the_same():
    parser = pytest.importorskip("r2egym.repo_analysis.execution_log_parser", reason="r2egym is not installed")
    logs = [f"{HEAD}{lines}" for lines in (
        "PASSED t::a\nFAILED t::b - PASSED", "ERROR t.py\nPASSED t::T::a[x - y]", "FAILED t::a - b\nSKIPPED t::c", "")]
    for log in logs:
        theirs = parser.decolor_dict_keys(parser.parse_log_fn("numpy")(log))
        assert summary.results(log) == {name.split(" - ")[0]: theirs[name] for name in sorted(theirs)}


def test_differences_name_what_is_missing_and_what_is_too_much():
    said = summary.differences({"a": "PASSED", "b": "FAILED"}, {"a": "PASSED", "b": "PASSED", "c": "PASSED"})
    assert said == "b FAILED instead of PASSED; c missing instead of PASSED"
    assert summary.differences({str(n): "FAILED" for n in range(5)}, {}).endswith("and 2 more")
