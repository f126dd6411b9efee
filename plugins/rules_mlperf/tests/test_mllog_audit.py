"""Sound logs pass, whatever their shape and division; and nothing in a log breaks the checks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from grpo_bench_rules_mlperf.audit import audit
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.training_6_1 import RULES
from grpo_bench_rules_mlperf.training_6_1_draft import RULES as DRAFT
from hypothesis import given, settings, strategies as st

from grpo_bench.contract import Status

Log = list[Line]


@pytest.fixture(scope="session")
def sound(make_deferred) -> Log:
    """Evaluations of steps 18 and 19 after a training of 20 steps."""
    return [parse(line) for line in lines(make_deferred([160, 180]).events, MllogConfig())]


@pytest.fixture
def log(sound: Log) -> Log:
    return list(sound)


def text(log: Log) -> str:
    return "".join(f"{line}\n" for line in log)


def open_division(log: Log) -> Log:
    return [replace(line, value="open") if line.key == "submission_division" else line for line in log]


def test_sound_logs_pass(make_benchmark, make_deferred, make_laptop, log: Log) -> None:
    assert audit(text(log), strict=RULES) == ()
    for run in (make_deferred([250]), make_deferred([173, 10], status=Status.TARGET_MISSED, more=0)):
        assert audit("\n".join(lines(run.events, MllogConfig())), strict=RULES) == ()
    for run in (make_benchmark([250]), make_laptop()):
        assert audit("\n".join(lines(run.events, MllogConfig()))) == ()


def test_what_an_older_version_wants_of_a_log(make_benchmark) -> None:
    """Its evaluations took turns with training, and were of other tasks."""
    run = make_benchmark([176, 177], tasks={"train": {"available": 685}, "held-out": {"available": 256}}, of=256)
    log = "\n".join(lines(run.events, MllogConfig()))
    assert audit(log, strict=DRAFT) == ()
    assert {finding.rule for finding in audit(log, strict=RULES)} == {"mllog accuracy", "mllog deferral"}


def test_the_open_division_leaves_training_free(log: Log) -> None:
    free = [line for line in log if line.key not in ("seed", "opt_end_learning_rate")]
    stopped = 19 * 256
    free = [line for line in free if line.metadata.get("samples_count") == stopped or line.key[:5] != "eval_"
            or line.key == "eval_samples"]
    assert {finding.rule for finding in audit(text(free), strict=RULES)} == {
        "mllog seed", "mllog learning rate", "mllog series"}
    assert audit(text(open_division(free)), strict=RULES) == ()
    negative = [replace(line, value=-1) if line.key == "seed" else line for line in open_division(log)]
    assert [finding.rule for finding in audit(text(negative), strict=RULES)] == ["mllog seed"]


def test_blocks_may_be_as_many_as_steps_and_count_their_own_samples(log: Log) -> None:
    """As other writers have it."""
    at = next(index for index, line in enumerate(log) if line.key == "block_start")
    first = log[at]
    block = {**first.metadata, "samples_count": 256, "step": 0}
    log[at:at + 1] = [replace(first, metadata=block),
                      Line(first.time_ms, "INTERVAL_END", "block_stop", None, {"samples_count": 0, "step": 0}),
                      replace(first, metadata={**block, "samples_count": 20 * 256})]
    assert audit(text(log), strict=RULES) == ()


@pytest.mark.parametrize(("line", "says"), [
    ("", "does not begin with"), ("hello", "does not begin with"), (":::MLLOG {", "line 3"),
    (":::MLLOG []", "should be an object of"), (':::MLLOG {"key": "seed", "value": 1}', "should be an object of"),
    (':::MLLOG {"namespace": "", "time_ms": "1", "event_type": "", "key": "", "value": 1, "metadata": {}}', "time_ms"),
    (':::MLLOG {"namespace": "", "time_ms": -1, "event_type": "", "key": "", "value": 1, "metadata": {}}', "is -1"),
    (':::MLLOG {"namespace": "", "time_ms": true, "event_type": "", "key": "", "value": 1, "metadata": {}}', "time_ms"),
    (':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "", "key": "", "value": NaN, "metadata": {}}', "NaN"),
    (':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "", "key": "", "value": 1, "metadata": 2}', "metadata")])
def test_a_damaged_line_is_named(log: Log, line: str, says: str) -> None:
    before, rest = text(log[:2]), text(log[2:])
    (finding,) = audit(f"{before}{line}\n{rest}")
    assert (finding.rule, finding.ok) == ("mllog form", False)
    assert finding.message.startswith("line 3: ") and says in finding.message


@given(st.text())
def test_anything_else_is_a_finding_too(content: str) -> None:
    assert audit(content)


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@settings(max_examples=60)
@given(key=st.sampled_from(["seed", "global_batch_size", "eval_accuracy", "target_accuracy", "run_stop", "block_start",
                            "opt_end_learning_rate", "opt_base_learning_rate"]), value=JSON, count=JSON, step=JSON)
def test_no_value_breaks_the_checks(sound: Log, key: str, value: Any, count: Any, step: Any) -> None:
    log = list(sound)
    at = next(number for number, line in enumerate(log) if line.key == key)
    log[at] = replace(log[at], value=value, metadata={"samples_count": count, "step": step, "status": value})
    for finding in audit(text(log), strict=RULES):
        assert finding.message and not finding.ok


@settings(max_examples=60)
@given(st.builds(Line, st.integers(0, 2**53 - 1), st.text(), st.text(), JSON, st.dictionaries(st.text(), JSON)))
def test_lines_survive_their_text(line: Line) -> None:
    assert parse(str(line)) == line
