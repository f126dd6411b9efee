"""The rules as data: schedule, formulas, and profiles and runs held against them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from grpo_bench_rules_mlperf.judge import MLPerfRuleset, create
from grpo_bench_rules_mlperf.training_6_1 import RULES
from hypothesis import given, strategies as st

from grpo_bench.contract import Finding, Kind, Phase, ValidationReport
from grpo_bench.registry import make_plan, resolve

VOCABULARY = RULES.vocab_size


def report(passed: int, tasks: int = 251, k: int = 4) -> ValidationReport:
    return ValidationReport(18, 18, k, tasks, passed, {"pass_k": passed / tasks}, 0.0, 1.0, {})


@pytest.mark.parametrize(("batch", "first", "rate", "clip"), [
    (256, 18, 1e-6, 0.125), (512, 10, 1.4142135624e-6, 0.08838834765), (1024, 7, 2e-6, 0.0625),
    (1152, 6, 2.1213203436e-6, 0.05892556510)])
def test_the_benchmarks_table(batch: int, first: int, rate: float, clip: float) -> None:
    assert RULES.first_validation(batch) == first
    assert RULES.learning_rate(batch) == pytest.approx(rate, abs=1e-15)
    assert RULES.clip_norm(batch) == pytest.approx(clip, abs=1e-10)


@given(st.integers(1, 10_000))
def test_the_first_validation_is_exact(batch: int) -> None:
    first = RULES.first_validation(batch)
    assert first - 1 < Fraction(5, 2) + Fraction(3840, batch) <= first


def test_when_to_validate() -> None:
    ruleset = MLPerfRuleset(RULES, 256, VOCABULARY)
    assert [step for step in range(31) if ruleset.should_validate(step, 30)] == list(range(18, 31))
    assert not ruleset.should_validate(10, 10)


def test_174_of_251() -> None:
    ruleset = MLPerfRuleset(RULES, 256, VOCABULARY)
    assert RULES.needed(251) == 174 and RULES.needed(100) == 69
    assert (ruleset.met(report(173)), ruleset.met(report(174))) == (False, True)
    assert not ruleset.met(report(251, k=8))


def test_the_batch_is_the_profiles_where_there_is_one() -> None:
    context: Any = SimpleNamespace(shared={"grpo": SimpleNamespace(prompts_per_step=32, generations_per_prompt=16)},
                                   policy=SimpleNamespace(vocab_size=VOCABULARY))
    assert create(context).should_validate(10, 20) and not create(context).should_validate(9, 20)


@pytest.fixture(scope="session")
def profile() -> Mapping[str, Any]:
    """Profile ``gb300-256-mock`` as a ruleset sees it."""
    plan = make_plan(resolve("gb300-256-mock"))
    return {**plan.resolved, "facts": {role.value: dict(part.facts) for role, part in plan.parts.items()}}


def broken(profile: Mapping[str, Any]) -> list[str]:
    found = MLPerfRuleset(RULES, 256, VOCABULARY).check(profile)
    assert all(finding.message and "\n" not in finding.message for finding in found)
    return [finding.rule for finding in found if not finding.ok]


def test_the_mock_of_the_benchmark_has_its_shape(profile: Mapping[str, Any]) -> None:
    assert broken(profile) == []
    found = MLPerfRuleset(RULES, 256, 431).check(profile)
    assert [finding.rule for finding in found if not finding.ok] == ["policy"]
    rules = {finding.rule for finding in found}
    assert {"grpo.loss.truncation.max", "trainer.opt_gradient_clip_norm", "limits.max_failed_share"} <= rules


def changed(profile: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    head, _, rest = dotted.partition(".")
    return {**profile, head: changed(profile[head], rest, value) if rest else value}


SINGLE = sorted(RULES.profile.keys() - {"grpo.generations_per_prompt"})
"""Values on which no other rule depends."""


@pytest.mark.parametrize("key", [*SINGLE, *(f"facts.trainer.{key}" for key in RULES.facts)])
def test_each_value_is_held_against_the_rules(profile: Mapping[str, Any], key: str) -> None:
    rule = key.removeprefix("facts.")
    assert broken(changed(profile, key, 0.123)) == [rule]
    absent = changed(profile, key, None)
    assert broken(absent) == ([] if RULES.profile.get(key, 0) is None else [rule])


@pytest.mark.parametrize(("key", "value", "rules"), [
    ("validation.start_at", 17, ["validation.start_at"]),
    ("validation.max_tasks", 250, ["validation.max_tasks"]),
    ("validation.max_tasks", None, []),
    ("grpo.max_steps", 31, ["grpo.max_steps"]),
    ("facts.trainer.opt_base_learning_rate", 1.1e-8, ["trainer.opt_base_learning_rate"]),
    ("facts.trainer.opt_end_learning_rate", 0.0, ["trainer.opt_end_learning_rate"]),
    ("facts.trainer.opt_gradient_clip_norm", None, ["trainer.opt_gradient_clip_norm"]),
    ("grpo.loss.truncation", None, [f"grpo.loss.truncation.{key}" for key in ("kind", "min", "max")]),
    ("grpo.prompts_per_step", 32, ["validation.start_at", "grpo.max_steps", "trainer.opt_base_learning_rate",
                                   "trainer.opt_end_learning_rate", "trainer.opt_gradient_clip_norm"]),
    ("grpo.generations_per_prompt", 8, ["grpo.generations_per_prompt", "validation.start_at",
                                        "trainer.opt_base_learning_rate", "trainer.opt_end_learning_rate",
                                        "trainer.opt_gradient_clip_norm"]),
    ("sampling.top_k", True, ["sampling.top_k"])])
def test_what_depends_on_the_batch(profile: Mapping[str, Any], key: str, value: Any, rules: list[str]) -> None:
    assert broken(changed(profile, key, value)) == rules


def after(run: Any) -> dict[str, Finding]:
    return {finding.rule: finding for finding in MLPerfRuleset(RULES, 256, 0).check_run(Path(), run.events)}


def test_a_run_that_kept_to_the_rules(make_benchmark) -> None:
    found = after(make_benchmark([100, 173, 174]))
    assert [rule for rule, finding in found.items() if not finding.ok] == ["deferred evaluation"]
    assert found["validation schedule"].message == "after steps 18, 19, 20"


def respoilt(run: Any, kind: Kind, number: int, **data: Any) -> Any:
    """The run with other data in its ``number``-th event of ``kind``."""
    at = [event.seq for event in run.events if event.kind == kind][number]
    run.events[at] = replace(run.events[at], data={**run.events[at].data, **data})
    return run


@pytest.mark.parametrize(("spoil", "rule", "says"), [
    (lambda run: respoilt(run, Kind.UPDATE, 5, learning_rate=2e-6), "learning rate", "2e-06; the rules want 1e-06"),
    (lambda run: respoilt(run, Kind.VALIDATION, 0, tasks=128, passed=10), "validation after step 18", "128 tasks x 4"),
    (lambda run: respoilt(run, Kind.VALIDATION, 1, k=1), "validation after step 19", "251 tasks x 1"),
    (lambda run: respoilt(run, Kind.VALIDATION, 0, ends={"completed": 1000, "timeout": 3, "failed": 1}),
     "validation after step 18", "4 of 1004"),
    (lambda run: respoilt(run, Kind.VALIDATION, 0, passed=174), "target", "went on after the one that met it"),
    (lambda run: respoilt(run, Kind.VALIDATION, 1, passed=173), "target", "met by no validation")])
def test_a_run_that_did_not(make_benchmark, spoil: Any, rule: str, says: str) -> None:
    found = after(spoil(make_benchmark([160, 180])))
    assert not found[rule].ok and says in found[rule].message
    assert {name for name, finding in found.items() if not finding.ok} == {rule, "deferred evaluation"}


def test_a_validation_at_the_wrong_step(make_recording) -> None:
    run = make_recording()
    run.step(1)
    run.validate(1, 180)
    run.end()
    assert after(run)["validation schedule"].message == "after steps 1; the rules want every step from 18 on"
    run = make_recording()
    run.phase(Phase.SHUTDOWN)
    assert not after(run)["validation schedule"].ok
