"""A sound log passes; each fault in one is found, by the right check and by no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from grpo_bench_rules_mlperf.audit import audit
from grpo_bench_rules_mlperf.config import MllogConfig
from grpo_bench_rules_mlperf.form import Line, parse
from grpo_bench_rules_mlperf.mllog import lines
from grpo_bench_rules_mlperf.training_6_1 import RULES
from hypothesis import given, settings, strategies as st

Log = list[Line]
EVALUATION = ("eval_start", "eval_accuracy", "eval_stop")


@pytest.fixture(scope="session")
def sound(make_benchmark) -> Log:
    """Evaluations at steps 18 and 19, the second of which passes."""
    return [parse(line) for line in lines(make_benchmark([160, 180]).events, MllogConfig())]


@pytest.fixture
def log(sound: Log) -> Log:
    return list(sound)


def text(log: Log) -> str:
    return "".join(f"{line}\n" for line in log)


def change(key: str, number: int = 0, metadata: dict[str, Any] | None = None, **values: Any) -> Callable[[Log], None]:
    """Give the ``number``-th line of ``key`` other values."""
    def act(log: Log) -> None:
        at = [index for index, line in enumerate(log) if line.key == key][number]
        log[at] = replace(log[at], metadata={**log[at].metadata, **(metadata or {})}, **values)

    return act


def drop(*keys: str) -> Callable[[Log], None]:
    def act(log: Log) -> None:
        log[:] = [line for line in log if line.key not in keys]

    return act


def swap(first: str, second: str) -> Callable[[Log], None]:
    """The first lines of two keys change places, each keeping the other's time."""
    def act(log: Log) -> None:
        a, b = (next(index for index, line in enumerate(log) if line.key == key) for key in (first, second))
        log[a], log[b] = replace(log[b], time_ms=log[a].time_ms), replace(log[a], time_ms=log[b].time_ms)

    return act


def once_more(key: str) -> Callable[[Log], None]:
    def act(log: Log) -> None:
        at = next(index for index, line in enumerate(log) if line.key == key)
        log.insert(at, log[at])

    return act


def go_on(log: Log) -> None:
    """Another step and another evaluation after the one that passed."""
    stop = log.pop()
    for line in [line for line in log if line.key in ("block_start", "block_stop", *EVALUATION)][-5:]:
        at = {**line.metadata, "step": 20, "samples_count": 20 * 256}
        at = {**at, "step": 19, "samples_count": 19 * 256} if line.key == "block_start" else at
        log.append(replace(line, time_ms=stop.time_ms, metadata=at))
    log.append(stop)


FAULTS = {
    "no seed": (drop("seed"), "mllog seed", "there 0 times"),
    "two seeds": (once_more("seed"), "mllog seed", "there 2 times"),
    "a seed as text": (change("seed", value="7"), "mllog seed", "'7'"),
    "a seed that is too large": (change("seed", value=2**32), "mllog seed", "4294967296"),
    "a seed below 0": (change("seed", value=-1), "mllog seed", "-1"),
    "no status": (change("run_stop", metadata={"status": None}), "mllog status", "is None"),
    "another status": (change("run_stop", metadata={"status": "done"}), "mllog status", "'done'"),
    "success that was none": (change("eval_accuracy", 1, value=0.68), "mllog status", "no evaluation reached"),
    "a success called aborted": (change("run_stop", metadata={"status": "aborted"}), "mllog status", "is aborted"),
    "an evaluation after the passing one": (go_on, "mllog status", "follows the one that reached"),
    "no end": (drop("run_stop"), "mllog order", "run_stop missing"),
    "no beginning": (drop("run_start"), "mllog order", "run_start missing"),
    "an end before the beginning": (swap("run_start", "run_stop"), "mllog order", "run_stop stands before run_start"),
    "an evaluation without a result": (drop("eval_accuracy"), "mllog order", "eval_stop follows eval_start"),
    "a block that does not end": (drop("block_stop"), "mllog order", "eval_start follows block_start"),
    "an end inside an evaluation": (drop("eval_stop"), "mllog order", "the run stops after eval_accuracy"),
    "a point for an interval": (change("run_stop", event_type="POINT_IN_TIME"), "mllog event types", "not INTERVAL"),
    "an unknown type": (change("seed", event_type="POINT"), "mllog event types", "of type POINT,"),
    "times that go back": (change("eval_stop", time_ms=1_700_000_000_000), "mllog times", "before eval_accuracy"),
    "no end learning rate": (drop("opt_end_learning_rate"), "mllog learning rate", "there 0 times"),
    "a rate that does not stay": (change("opt_end_learning_rate", value=0.0), "mllog learning rate", "ends at 0.0"),
    "no batch": (drop("global_batch_size"), "mllog samples", "is None"),
    "samples between steps": (change("tracked_stats", metadata={"samples_count": 100}), "mllog samples", "100"),
    "another step's samples": (change("tracked_stats", metadata={"step": 3}), "mllog samples", "in step 3"),
    "a step that is none": (change("tracked_stats", metadata={"step": None}), "mllog samples", "in step None"),
    "samples as text": (change("block_stop", metadata={"samples_count": "4608"}), "mllog samples", "'4608'"),
}
CONSEQUENCES = {"mllog order": {"mllog status"}, "mllog samples": {"mllog series"}}
"""What else a fault of one kind may show as."""


def test_sound_logs_pass(make_benchmark, make_laptop, log: Log) -> None:
    assert audit(text(log), strict=RULES) == ()
    for run in (make_benchmark([250]), make_laptop()):
        assert audit("\n".join(lines(run.events, MllogConfig()))) == ()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(log: Log, name: str) -> None:
    act, rule, says = FAULTS[name]
    act(log)
    found = audit(text(log))
    assert [finding for finding in found if finding.rule == rule and says in finding.message], found
    assert {finding.rule for finding in found} - CONSEQUENCES.get(rule, set()) == {rule}
    assert not any(finding.ok for finding in found)


@pytest.mark.parametrize(("act", "says"), [
    (drop("eval_accuracy"), "mllog order"),
    (change("eval_accuracy", 0, {"samples_count": 17 * 256, "step": 17}), "[4352"),
    (change("eval_accuracy", 1, {"samples_count": 20 * 256, "step": 20}), "5120]"),
    (change("eval_accuracy", 1, {"samples_count": 18 * 256, "step": 18}), "do not go forward")])
def test_the_rules_say_where_evaluations_are(log: Log, act: Callable[[Log], None], says: str) -> None:
    act(log)
    assert any(says in f"{finding.rule} {finding.message}" for finding in audit(text(log), strict=RULES))


@pytest.mark.parametrize(("line", "says"), [
    ("", "does not begin with"), ("hello", "does not begin with"), (":::MLLOG {", "line 3"),
    (":::MLLOG []", "should be an object of"), (':::MLLOG {"key": "seed", "value": 1}', "should be an object of"),
    (':::MLLOG {"namespace": "", "time_ms": "1", "event_type": "", "key": "", "value": 1, "metadata": {}}', "time_ms"),
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
    change(key, value=value, metadata={"samples_count": count, "step": step, "status": value})(log)
    for finding in audit(text(log), strict=RULES):
        assert finding.message and not finding.ok


@settings(max_examples=60)
@given(st.builds(Line, st.integers(), st.text(), st.text(), JSON, st.dictionaries(st.text(), JSON)))
def test_lines_survive_their_text(line: Line) -> None:
    assert parse(str(line)) == line
