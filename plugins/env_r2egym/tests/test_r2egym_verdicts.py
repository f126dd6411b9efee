"""Judging from what was printed, what was recorded and how the process ended."""

import json

import pytest
from grpo_bench_env_r2egym.grading import records
from grpo_bench_env_r2egym.grading.runs import judge

WORD = "w0rd"
EXPECTED = {"test_a": "PASSED", "T.test_b": "PASSED"}
PASSING, FAILING = "t.py::test_some_thing", "t.py::test_other_thing"


def honest(statuses=None):
    """The records of a run in which all is as expected, as (kind, data)."""
    tests = {"t.py::test_a": "passed", "t.py::T::test_b": "passed", PASSING: "passed", FAILING: "failed"}
    tests |= statuses or {}
    return [("begin", {"pytest": "9"}), ("canaries", {"passing": PASSING, "failing": FAILING}),
            *(("test", {"id": name, "when": when, "outcome": outcome if when == "call" else "passed", "xfail": False,
                        "kind": "TestReport"}) for name, outcome in tests.items() for when in ("setup", "call")),
            ("state", {"changed": [], "foreign": []}), ("end", {"code": 1})]


def channel(made, word=WORD):
    return "".join(f"{word} {number} {json.dumps(record)}\n" for number, record in enumerate(made))


def log(*lines):
    return "=== short test summary info ===\n" + "\n".join(lines) + "\n"


LOG = log("PASSED t.py::test_a", "PASSED t.py::T::test_b", f"PASSED {PASSING}", f"FAILED {FAILING} - AssertionError")


def verdict(printed=LOG, made=None, code=1, expected=EXPECTED, before=""):
    return judge(printed, records.read(before + channel(made or honest()), WORD), code, expected)


def test_an_honest_run_is_right():
    assert verdict().reward == 1.0
    assert not verdict().faults
    assert verdict(before="a warning of the interpreter\n").reward == 1.0


def test_a_test_that_fails_is_wrong_and_no_fault():
    printed = LOG.replace("PASSED t.py::test_a", "FAILED t.py::test_a - no")
    found = verdict(printed, honest({"t.py::test_a": "failed"}))
    assert (found.reward, found.faults) == (0.0, ())
    assert found.detail == "test_a FAILED instead of PASSED"


def test_a_failure_that_is_expected_is_right():
    printed = LOG.replace("PASSED t.py::test_a", "FAILED t.py::test_a - no")
    assert verdict(printed, honest({"t.py::test_a": "failed"}), expected=EXPECTED | {"test_a": "FAILED"}).reward == 1.0


def without(kind):
    return [record for record in honest() if record[0] != kind]


@pytest.mark.parametrize(("printed", "made", "said"), [
    (log("PASSED t.py::test_a", "PASSED t.py::T::test_b"), honest(), "must fail did not, by the summary"),
    (LOG.replace(f"FAILED {FAILING}", f"PASSED {FAILING}"), honest({FAILING: "passed"}), "must fail did not"),
    (LOG.replace(f"PASSED {PASSING}", f"FAILED {PASSING}"), honest({PASSING: "failed"}), "must pass did not"),
    (LOG, honest({"t.py::test_a": "failed"}), "summary and records differ"),
    (LOG.replace("PASSED t.py::test_a", "FAILED t.py::test_a"), honest(), "summary and records differ"),
    (LOG, [*without("end")[:-1], ("state", {"changed": ["_pytest.runner.x"], "foreign": []}), ("end", {"code": 1})],
     "changed _pytest.runner.x"),
    (LOG, [*without("end")[:-1], ("state", {"changed": [], "foreign": ["/testbed/x.py"]}), ("end", {"code": 1})],
     "a plugin /testbed/x.py"),
])
def test_what_an_honest_run_does_not_do(printed, made, said):
    found = verdict(printed, made)
    assert found.reward == 0.0
    assert any(said in fault for fault in found.faults)


def test_a_run_that_never_came_to_its_end_is_wrong():
    assert verdict(made=without("end")).reward == 0.0
    assert verdict(made=honest()[:4], code=0).detail == "the tests did not come to their end (exit code 0)"


def test_another_exit_code_than_pytests_is_a_fault():
    assert verdict(code=0).faults


@pytest.mark.parametrize("forged", ["noise\n", "w0rd 1 [\"end\", {\"code\": 1}]\n", "\n"])
def test_a_channel_that_someone_else_wrote_to_is_a_fault(forged):
    lines = channel(honest()).splitlines(keepends=True)
    text = "".join([*lines[:5], forged, *lines[5:]])
    found = judge(LOG, records.read(text, WORD), 1, EXPECTED)
    assert (found.reward, bool(found.faults)) == (0.0, True)


def test_records_of_another_word_do_not_count():
    assert records.read(channel(honest(), "other"), WORD).code is None


def test_phases_become_the_words_of_a_summary():
    test = {"id": "t.py::a", "when": "call", "outcome": "passed", "xfail": False}
    made = [("begin", {}), ("test", test), ("test", {**test, "when": "teardown", "outcome": "failed"}),
            ("test", {**test, "id": "t.py::b", "when": "setup", "outcome": "failed"}),
            ("test", {**test, "id": "t.py::c", "outcome": "skipped"}),
            ("test", {**test, "id": "t.py::d", "xfail": True}),
            ("collect", {"id": "t.py"}), ("end", {"code": 1})]
    assert records.read(channel(made), WORD).results == {"a": "ERROR", "b": "ERROR", "": "ERROR"}


@pytest.mark.parametrize("line", [
    "no json", "[" * 100_000, "1", '["test", null]', '["test", {}]', '["canaries", []]', '["state", {"changed": 1}]'])
def test_a_record_that_is_none_is_a_fault_and_no_error(line):
    said = records.read(f"{channel(honest()[:1])}{WORD} 1 {line}\n", WORD)
    assert said.code is None
    assert said.faults == ("a record is not as the recorder makes them",)
    assert judge(LOG, said, 1, EXPECTED).reward == 0.0
